--
-- The gate between reads and writes: idem_register, idem_call, idem_begin.
--
\pset null <null>
CREATE SCHEMA gate_test;
SET search_path = gate_test, public;

CREATE TABLE ledger (nr int GENERATED ALWAYS AS IDENTITY, what text);

CREATE FUNCTION act(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO gate_test.ledger (what) VALUES (args ->> 0)
	RETURNING to_jsonb(nr);
$$;

-- How often it acted since the last look
CREATE FUNCTION acted() RETURNS bigint LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM gate_test.ledger RETURNING nr)
	SELECT count(*) FROM gone;
$$;

--
-- The registry
--
SELECT idem_register('charge', 'act(jsonb)', 'write');
SELECT idem_register('balance', 'act(jsonb)', 'read');
SELECT idem_register('put_label', 'act(jsonb)', 'idempotent');
SELECT idem_register('note', 'act(jsonb)', fallback_ttl => '10 min');
SELECT idem_register('refund', 'act(jsonb)', result_ttl => '1000 years', takeover => '0',
	description => 'Pays a charge back.');
SELECT idem_register('mail', reservation_ttl => '2 min', result_ttl => '3 days',
	takeover => '20 hours');
SELECT idem_register('sms', fallback_ttl => '5 min');
SELECT idem_register('page_read', effect => 'read');
SELECT idem_register('upload', effect => 'idempotent');
SELECT * FROM idem_tools ORDER BY tool;

-- again replaces all of it
SELECT idem_register('renamed', 'act(jsonb)', 'read', '1 s', '2 s', '3 s', NULL, 'x');
SELECT idem_register('renamed', fallback_ttl => '4 s');
SELECT * FROM idem_tools WHERE tool = 'renamed';
SELECT idem_unregister('renamed');
SELECT idem_unregister('renamed');
SELECT idem_unregister(NULL);

-- what it does not take
SELECT error_of($$SELECT idem_register(NULL)$$);
SELECT error_of($$SELECT idem_register('x', effect => NULL)$$);
SELECT error_of($$SELECT idem_register('')$$);
SELECT error_of($$SELECT idem_register(E'a\nb')$$);
SELECT error_of($$SELECT idem_register(repeat('x', 1000))$$);
SELECT error_of($$SELECT idem_register('x', effect => 'harmless')$$);
SELECT error_of($$SELECT idem_register('x', 'now()')$$);
SELECT error_of($$SELECT idem_register('x', 'jsonb_array_elements(jsonb)')$$);
SELECT error_of($$SELECT idem_register('x', 0)$$);
CREATE FUNCTION pg_temp.gone_soon(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
SELECT regexp_replace(error_of($$SELECT idem_register('x', 'pg_temp.gone_soon(jsonb)')$$),
	'pg_temp_\d+', 'pg_temp') AS failure;
SELECT split_part(error_of(format('SELECT idem_register(''x'', %s)', bad)), E'\n', 1)
	AS failure
FROM unnest(ARRAY['reservation_ttl => ''0''', 'reservation_ttl => ''-1 s''',
	'result_ttl => ''0''', 'result_ttl => ''200000 years''',
	'result_ttl => ''100000 years 1 us''', 'takeover => ''36000001 days''',
	'takeover => ''-1 s''', 'fallback_ttl => ''0''',
	'reservation_ttl => ''2 days''', 'reservation_ttl => ''300000''',
	'fallback_ttl => ''1 s'', effect => ''read''',
	'fallback_ttl => ''1 s'', effect => ''idempotent''']) AS bad;
SELECT error_of($$SELECT idem_register('x', reservation_ttl => '300000')$$);
SELECT error_of($$SELECT idem_register('x', fallback_ttl => '1 s', effect => 'read')$$);
-- the superuser's limits bind the registry, too, and what is in it
SET idem_tool.max_result_ttl = '1 d';
SELECT error_of($$SELECT idem_register('x', result_ttl => '25 h')$$);
SELECT error_of($$SELECT idem_register('x', fallback_ttl => '25 h')$$);
SELECT error_of($$SELECT idem_call('refund', '{}', 'limit')$$);
RESET idem_tool.max_result_ttl;
SET idem_tool.max_reservation_ttl = '1 min';
SELECT idem_begin('mail', '{}', 'limit');
RESET idem_tool.max_reservation_ttl;
SELECT count(*) FROM idem_tools WHERE tool = 'x';
-- up to the limits
SELECT idem_register('x', reservation_ttl => '1 day', result_ttl => '100000 years',
	takeover => '100000 years', fallback_ttl => '36000000 days');
SELECT idem_unregister('x');
BEGIN READ ONLY;
SELECT error_of($$SELECT idem_register('x')$$);
SELECT error_of($$SELECT idem_unregister('mail')$$);
COMMIT;

--
-- idem_call: a read at once, without key and row
--
SELECT idem_call('balance', '["b"]') <> idem_call('balance', '["b"]') AS twice;
-- a key is not needed and does not matter
SELECT idem_call('balance', '["b"]', 'balance 1') <> idem_call('balance', '["b"]', 'balance 1') AS twice;
SELECT acted(), count(*) AS rows FROM idempotency_keys WHERE key LIKE '%balance%';
BEGIN READ ONLY;
SELECT error_of($$SELECT idem_call('balance', '["b"]')$$);
COMMIT;

-- so does a write that its target dedupes
SELECT idem_call('put_label', '["p"]') <> idem_call('put_label', '["p"]', 'p') AS twice;
SELECT acted(), count(*) AS rows FROM idempotency_keys WHERE key LIKE '%p%';

-- a write needs a key, and runs once for it
SELECT error_of($$SELECT idem_call('charge', '["c"]')$$);
SELECT acted(), count(*) AS rows FROM idempotency_keys;
SELECT idem_call('charge', '["c"]', 'charge 1') = idem_call('charge', '["c"]', 'charge 1') AS once;
SELECT idem_call('charge', '["c"]', 'charge 2') <> idem_call('charge', '["c"]', 'charge 1') AS another;
SELECT idem_call('charge', '["c"]', key => 'charge 1', wait => '1 s', scope => 's')
	<> idem_call('charge', '["c"]', 'charge 1') AS another_scope;
SELECT acted();
SELECT error_of($$SELECT idem_call('charge', '["c", 2]', 'charge 1')$$);
SELECT error_of($$SELECT idem_call('refund', '["c"]', 'charge 1')$$);
SELECT fingerprint = idem_fingerprint('{"tool": "charge", "args": ["c"]}') AS as_documented
FROM idempotency_keys WHERE key = 'charge 1' AND scope = 's';
SELECT acted();

-- the weak fallback: equal calls are one, for fallback_ttl
SELECT idem_call('note', '["n", 1]') = idem_call('note', '["n", 1.0]') AS once;
SELECT idem_call('note', '["n", 2]') <> idem_call('note', '["n", 1]') AS another;
SELECT key = idem_call_key('note', '["n", 1]') AS derived, expires_at - completed_at AS memory
FROM idempotency_keys WHERE key LIKE 'note:%' AND key <> idem_call_key('note', '["n", 2]');
SELECT acted();
UPDATE idempotency_keys SET expires_at = clock_timestamp()
WHERE key = idem_call_key('note', '["n", 1]');
SELECT idem_call('note', '["n", 1]') IS NOT NULL AS ran;
SELECT acted();
-- with a key it is a write like any other
SELECT idem_call('note', '["n", 1]', 'note 1') = idem_call('note', '["n", 1]', 'note 1') AS once;
SELECT expires_at - completed_at AS memory FROM idem_lookup('note 1');
SELECT acted();

-- times and takeover come from the registry
SELECT idem_call('refund', '["r"]', 'refund 1') IS NOT NULL AS ran;
SELECT expires_at > now() + interval '8000000 hours' AS kept FROM idem_lookup('refund 1');
SELECT idem_abandon('refund 2', token) FROM idem_reserve('refund 2');
SELECT error_of($$SELECT idem_call('refund', '["r"]', 'refund 2')$$);
SELECT idem_call('charge', '["r"]', 'refund 2') IS NOT NULL AS taken_over;
SELECT acted();

-- a registry that changed in the meantime is heeded at once
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_call('balance', '["b"]') IS NOT NULL AS read;
SELECT idem_register('balance', 'act(jsonb)', 'write');
SELECT error_of($$SELECT idem_call('balance', '["b"]')$$);
ROLLBACK;
SELECT idem_call('balance', '["b"]') IS NOT NULL AS read;
SELECT acted();

-- refused: what is not registered, or is no function
SELECT error_of($$SELECT idem_call('no such', '{}')$$);
SELECT error_of($$SELECT idem_call('no such', '{}', 'k')$$);
SELECT error_of($$SELECT idem_call('Charge', '{}', 'k')$$);
SELECT error_of($$SELECT idem_call('charge ', '{}', 'k')$$);
SELECT error_of($$SELECT idem_call('', '{}', 'k')$$);
SELECT error_of($$SELECT idem_call(NULL, '{}', 'k')$$);
SELECT error_of($$SELECT idem_call('charge', NULL, 'k')$$);
SELECT error_of($$SELECT idem_call('balance', NULL)$$);
SELECT error_of($$SELECT idem_call('mail', '{}', 'k')$$);
SELECT error_of($$SELECT idem_call('page_read', '{}')$$);
SELECT error_of($$SELECT idem_call('charge', '{}', '')$$);
SELECT error_of($$SELECT idem_call('charge', '{}', 'k', '2 hours')$$);
SELECT error_of($$SELECT idem_call('charge', '{}', 'k', scope => ' ')$$);
SELECT * FROM idem_lookup('k');

-- in progress, unknown, failed: as idem_run says it
SELECT status FROM idem_reserve('busy');
SELECT error_of($$SELECT idem_call('charge', '{}', 'busy')$$);
SELECT idem_fail('failed', '{"why": "declined"}', token) FROM idem_reserve('failed');
SELECT error_of($$SELECT idem_call('charge', '{}', 'failed')$$);

--
-- The function is found by its qualified name, and by nothing else
--
CREATE SCHEMA gate_evil;
CREATE TYPE gate_evil.jsonb AS (x int);
CREATE FUNCTION gate_evil.act(args pg_catalog.jsonb) RETURNS pg_catalog.jsonb
	LANGUAGE sql AS 'SELECT ''"evil"''::pg_catalog.jsonb';
CREATE FUNCTION gate_test.act(args gate_evil.jsonb) RETURNS pg_catalog.jsonb
	LANGUAGE sql AS 'SELECT ''"evil"''::pg_catalog.jsonb';
CREATE TABLE gate_evil.idem_tools (tool text);
CREATE TEMP TABLE idem_tools (tool text);
SET search_path = gate_evil, pg_temp, pg_catalog, public, gate_test;
SELECT public.idem_call('charge', '["c"]', 'path 1') <> '"evil"' AS ours;
SELECT public.idem_register('path', 'gate_test.act(pg_catalog.jsonb)');
SELECT public.idem_call('path', '["c"]', 'path 2') <> '"evil"' AS ours;
SELECT public.idem_unregister('path');
SET search_path = gate_test, public;
DROP TABLE pg_temp.idem_tools;
SET client_min_messages = warning;
DROP SCHEMA gate_evil CASCADE;
RESET client_min_messages;
SELECT acted();

-- names that must be quoted
CREATE FUNCTION "Send ""it"".now"(args jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT ''"sent"''::jsonb';
SELECT idem_register('quoted', '"Send ""it"".now"(jsonb)', 'read');
SELECT function, idem_call('quoted', '{}') FROM idem_tools WHERE tool = 'quoted';

-- renamed or dropped: a clear error, and nothing else is called
ALTER FUNCTION "Send ""it"".now"(jsonb) RENAME TO sent;
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
-- edited by hand into something else
UPDATE idem_tools SET function = 'act(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
UPDATE idem_tools SET function = 'gate_test.act' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
UPDATE idem_tools SET function = 'no_such_schema.act(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
UPDATE idem_tools SET function = '(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
UPDATE idem_tools SET function = 'gate_test..act(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
UPDATE idem_tools SET function = '"gate_test.act(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
-- or into a function that is none
CREATE FUNCTION set_of(args jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT args';
UPDATE idem_tools SET function = 'gate_test.set_of(jsonb)' WHERE tool = 'quoted';
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);

-- a registry that is not what the extension made is not half used
BEGIN;
ALTER TABLE idem_tools DROP CONSTRAINT idem_tools_pkey;
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
ALTER TABLE idem_tools ADD PRIMARY KEY (effect, tool);
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
SELECT error_of($$SELECT idem_register('quoted')$$);
ROLLBACK;
BEGIN;
ALTER TABLE idem_tools ALTER tool TYPE text COLLATE "POSIX";
SELECT error_of($$SELECT idem_unregister('quoted')$$);
ROLLBACK;
BEGIN;
ALTER TABLE idem_tools ALTER effect DROP NOT NULL;
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);
ROLLBACK;
SELECT error_of($$SELECT idem_call('quoted', '{}')$$);

--
-- idem_begin: the same decision for a tool outside the database
--
SELECT status, result, token IS NOT NULL AS token, attempt, maybe_ran,
	created_at IS NOT NULL AS created, round(extract(epoch FROM expires_at - created_at)) AS lease,
	retry_after, key, provider_key, result_ttl
FROM idem_begin('mail', '{"to": "a"}', 'mail 1') \gx
SELECT status, result, token, attempt, maybe_ran, retry_after > 0 AS retry,
	key, provider_key, result_ttl
FROM idem_begin('mail', '{"to": "a"}', 'mail 1') \gx
\set VERBOSITY sqlstate
SELECT idem_begin('mail', '{"to": "b"}', 'mail 1');
\set VERBOSITY default
SELECT idem_complete('mail 1', '"sent"', token, ttl => '3 days') FROM idempotency_keys WHERE key = 'mail 1';
SELECT status, result, token, key, provider_key FROM idem_begin('mail', '{"to": "a"}', 'mail 1');
-- every attempt gives the provider the same key
SELECT idem_abandon(key, token, 'eu'), provider_key FROM idem_begin('mail', '{}', 'mail:2', scope => 'eu');
SELECT status, attempt, maybe_ran, provider_key
FROM idem_begin('mail', '{}', 'mail:2', holder => 'worker 1', scope => 'eu');
SELECT holder FROM idem_lookup('mail:2', 'eu');
-- the same holder again: its earlier attempt is dead
SELECT status, attempt, maybe_ran, provider_key
FROM idem_begin('mail', '{}', 'mail:2', holder => 'worker 1', scope => 'eu');
-- too late for the provider to remember: not again
UPDATE idempotency_keys SET created_at = created_at - interval '21 hours',
	expires_at = clock_timestamp() WHERE key = 'mail:2';
SELECT status, token, provider_key FROM idem_begin('mail', '{}', 'mail:2', scope => 'eu');
-- failed
SELECT idem_fail(key, '{"code": 550}', token) FROM idem_begin('mail', '{}', 'mail 3');
SELECT status, result, key FROM idem_begin('mail', '{}', 'mail 3');

-- all columns of one call
SELECT (r).status, (r).token IS NOT NULL AS token, (r).key, (r).provider_key
FROM (SELECT (idem_begin('mail', '{}', 'mail 4')).*) AS t
	CROSS JOIN LATERAL (SELECT ROW (t.*)::idem_begun) AS s (r);
SELECT i, status, token IS NOT NULL AS token
FROM (SELECT i, (idem_begin('mail', '{}', 'mail 5')).* FROM generate_series(1, 2) AS i) AS t;

-- reads, and what its target dedupes, which may want the key
SELECT * FROM idem_begin('page_read', '{}') \gx
SELECT * FROM idem_begin('page_read', '{}', 'ignored') \gx
SELECT status, key, provider_key FROM idem_begin('upload', '{}');
SELECT status, key, provider_key FROM idem_begin('upload', '{}', 'upload:1', scope => 'eu');
SELECT count(*) FROM idempotency_keys WHERE key LIKE 'upload%' OR key = 'ignored';

-- without a key: refused, or the weak fallback
SELECT idem_begin('mail', '{}');
SELECT status, key = idem_call_key('sms', '{"to": 1}') AS derived, provider_key = key AS provided, result_ttl
FROM idem_begin('sms', '{"to": 1}');
SELECT status FROM idem_begin('sms', '{"to": 1.0}');
SELECT status FROM idem_begin('sms', '{"to": 2}');

-- inside a transaction block, of whatever kind
BEGIN;
SELECT idem_begin('mail', '{}', 'block');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_begin('page_read', '{}');
ROLLBACK;
SELECT 1 AS one \; SELECT idem_begin('mail', '{}', 'block');
SELECT idem_begin('mail', '{}', 'block') \; SELECT 1 AS one;
DO $$
BEGIN
	BEGIN
		PERFORM idem_begin('mail', '{}', 'block');
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
END $$;
SELECT * FROM idem_lookup('block');
-- a function that is a statement of its own may
CREATE FUNCTION begin_mail(key text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN status FROM idem_begin('mail', '{}', begin_mail.key);
END $$;
SELECT begin_mail('wrapped');
SELECT begin_mail('wrapped');
-- and a block that commits
DO $$
BEGIN
	PERFORM idem_begin('mail', '{}', 'procedure');
	COMMIT;
	PERFORM 1 / 0;
END $$;
SELECT status FROM idem_lookup('procedure');

-- bad arguments
SELECT idem_begin('no such', '{}', 'k');
SELECT idem_begin(NULL, '{}', 'k');
SELECT idem_begin('mail', NULL, 'k');
SELECT idem_begin('mail', '{}', ' ');
SELECT idem_begin('mail', '{}', 'k', holder => '');
SELECT idem_begin('mail', '{}', 'k', wait => '-1');

--
-- provider_key: ASCII, at most 255 characters, different for different keys
--
CREATE TABLE names (nr int GENERATED ALWAYS AS IDENTITY, scope text, key text);
INSERT INTO names (scope, key)
VALUES ('', 'charge:1'), ('eu', 'charge:1'), ('', 'eu/charge:1'), ('eu', 'a/b'),
	('eu/a', 'b'), ('', '/eu/a'), ('', 'with space'), ('', 'with space '),
	('eu', 'with space'), ('e u', 'charge:1'), ('', E'\u00fc'), (E'\u00fc', ''''),
	('', '~'), ('', 'a"b'), ('', 'a,b'), ('', 'a%b'),
	('', repeat('k', 255)), ('', repeat('k', 256)), ('eu', repeat('k', 252)),
	('eu', repeat('k', 253)), (repeat('s', 189), repeat('k', 100)),
	(repeat('s', 190), repeat('k', 100)), (repeat('s', 254), 'k'), ('', repeat('/', 254)),
	('', repeat('/', 255)), ('x', repeat('k', 1024)), (repeat('s', 255), repeat('k', 1024));
CREATE TABLE provided AS
SELECT nr, names.scope, names.key, b.provider_key
FROM names, idem_begin('upload', '{}', names.key, scope => names.scope) AS b;
SELECT scope, key, provider_key FROM provided
WHERE length(scope || key) < 30 ORDER BY nr;
SELECT length(scope) AS scope, length(key) AS key, length(provider_key),
	regexp_replace(provider_key, '(.)\1{9,}', '\1...', 'g') AS provider_key
FROM provided WHERE length(scope || key) >= 30 ORDER BY nr;
SELECT count(*), count(DISTINCT provider_key), max(length(provider_key)),
	bool_and(provider_key ~ '^[!-~]+$') AS printable
FROM provided;
-- a key that looks like a hash of ours is not taken for one
INSERT INTO provided
SELECT 0, '', p.provider_key, b.provider_key
FROM provided AS p, idem_begin('upload', '{}', p.provider_key, scope => '') AS b
WHERE p.scope <> '' OR p.provider_key <> p.key;
SELECT count(DISTINCT (scope, key)) = count(DISTINCT provider_key) AS different,
	count(DISTINCT provider_key) > 40 AS many, max(length(provider_key))
FROM provided;
-- as documented
SELECT '~' || encode(idem_fingerprint('{"scope": "", "key": "with space"}'), 'hex')
	= provider_key AS as_documented
FROM provided WHERE key = 'with space' AND scope = '';

--
-- Rights
--
CREATE ROLE regress_gate_caller;
CREATE ROLE regress_gate_operator;
CREATE ROLE regress_gate_monitor;
SELECT idem_grant('regress_gate_caller'), idem_grant('regress_gate_operator', 'operator'),
	idem_grant('regress_gate_monitor', 'monitor');
GRANT USAGE ON SCHEMA gate_test TO regress_gate_caller, regress_gate_operator;
GRANT INSERT, SELECT ON ledger TO regress_gate_caller;
SET ROLE regress_gate_caller;
-- a caller needs no privilege on the registry, and has none
SELECT idem_call('charge', '["c"]', 'right 1') IS NOT NULL AS ran;
SELECT status FROM idem_begin('mail', '{}', 'right 2');
SELECT error_of($$SELECT count(*) FROM idem_tools$$);
SELECT error_of($$SELECT idem_register('charge', 'act(jsonb)', 'read')$$);
SELECT error_of($$SELECT idem_unregister('charge')$$);
SELECT error_of($$UPDATE idem_tools SET effect = 'read'$$);
RESET ROLE;
-- nor can he call by it what he may not execute
REVOKE ALL ON FUNCTION act(jsonb) FROM PUBLIC;
SET ROLE regress_gate_caller;
SELECT error_of($$SELECT idem_call('charge', '["c"]', 'right 1')$$);
SELECT error_of($$SELECT idem_call('balance', '["c"]')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION act(jsonb) TO PUBLIC;
REVOKE USAGE ON SCHEMA gate_test FROM regress_gate_caller;
SET ROLE regress_gate_caller;
SELECT public.idem_call('charge', '["c"]', 'right 1');
RESET ROLE;
SET ROLE regress_gate_monitor;
SELECT count(*) > 0 AS sees FROM public.idem_tools;
SELECT public.idem_register('charge');
SELECT public.idem_call('charge', '{}');
RESET ROLE;
SET ROLE regress_gate_operator;
SELECT idem_register('op', 'act(jsonb)', 'read'), idem_unregister('op');
RESET ROLE;
-- a trigger of the operator's, who has been given too much, is not run
GRANT TRIGGER ON idem_tools TO regress_gate_operator;
GRANT CREATE ON SCHEMA gate_test TO regress_gate_operator;
SET ROLE regress_gate_operator;
CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN RAISE NOTICE ''% as %'', tg_op, current_user; RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON idem_tools
	FOR EACH ROW EXECUTE FUNCTION trap();
RESET ROLE;
SELECT error_of($$SELECT idem_register('op')$$);
SELECT error_of($$SELECT idem_unregister('mail')$$);
-- the administrator's is, as the owner of the table
ALTER FUNCTION trap() OWNER TO CURRENT_USER;
SET ROLE regress_gate_operator;
SELECT idem_register('op');
SELECT idem_register('op');
SELECT idem_unregister('op');
RESET ROLE;
-- what it keeps from the table was not registered
CREATE OR REPLACE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN RETURN NULL; END';
SELECT error_of($$SELECT idem_register('op')$$);
SELECT error_of($$SELECT idem_unregister('mail')$$);
DROP TRIGGER trap ON idem_tools;

-- nothing is called by its name: an overload that fits better is not ours
CREATE FUNCTION public.idem_call_key(text, text) RETURNS text LANGUAGE plpgsql AS
	'BEGIN RAISE ''runs as %'', current_user; END';
SELECT idem_register('op', 'act(jsonb)', fallback_ttl => '1 s'), idem_unregister('op');
DROP FUNCTION public.idem_call_key(text, text);

SET ROLE pg_read_all_data;
SELECT public.idem_call('charge', '{}');
RESET ROLE;
SELECT has_table_privilege('pg_monitor', 'idem_tools', 'SELECT') AS public_select;

SET client_min_messages = warning;
DELETE FROM idempotency_keys;
DELETE FROM idem_tools;
DROP SCHEMA gate_test CASCADE;
DROP OWNED BY regress_gate_caller, regress_gate_operator, regress_gate_monitor;
DROP ROLE regress_gate_caller, regress_gate_operator, regress_gate_monitor;
