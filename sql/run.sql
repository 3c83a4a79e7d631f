--
-- idem_run: a function runs once for its key.
--
-- Every tool here leaves a row in the ledger, so what ran is what is there.
--
\pset null <null>
CREATE SCHEMA run_test;
SET search_path = run_test, public;

CREATE TABLE ledger (nr int GENERATED ALWAYS AS IDENTITY, what text);

CREATE FUNCTION charge(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO run_test.ledger (what) VALUES ('charge ' || args::text)
	RETURNING jsonb_build_object('charge', nr, 'amount', args -> 'amount');
$$;

-- What happened since the last look
CREATE FUNCTION happened() RETURNS SETOF text LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM run_test.ledger RETURNING nr, what)
	SELECT what FROM gone ORDER BY nr;
$$;

--
-- The first call runs it, the others get what that returned
--
SELECT idem_run('once', 'charge(jsonb)', '{"amount": 4200}');
SELECT idem_run('once', 'charge(jsonb)', '{"amount": 4200}');
SELECT happened();
SELECT status, attempt, maybe_ran, result FROM idem_lookup('once');

-- three rows are three calls
SELECT idem_run('rows', 'charge(jsonb)', '{"amount": 1}')
FROM generate_series(1, 3);
SELECT happened();

-- named arguments; NULL means the default
SELECT idem_run(key => 'named', tool => 'run_test.charge(jsonb)', args => NULL,
				ttl => NULL, wait => NULL, scope => NULL);
SELECT idem_run('named', 'charge(jsonb)', '{}', '1 day', '0', '');
SELECT happened();

-- scopes are apart
SELECT idem_run('once', 'charge(jsonb)', '{"amount": 4200}', scope => 'other');
SELECT happened();

-- whatever jsonb it is, a replay is the same to the last digit; SQL NULL too,
-- to and from a strict function
CREATE FUNCTION echo(args jsonb) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
BEGIN
	INSERT INTO run_test.ledger (what) VALUES ('echo ' || args::text);
	RETURN args -> 0;
END $$;
SELECT args, first IS NOT DISTINCT FROM again AS same, first::text AS text
FROM unnest('{"[null]", "[]", "[{}]", "[\"\"]", "[false]", "[0]",
	"[1.500]", "[12345678901234567890.1234567890123]"}'::jsonb[])
	WITH ORDINALITY AS t (args, nr),
	idem_run('echo:' || nr, 'echo(jsonb)', args) AS first,
	idem_run('echo:' || nr, 'echo(jsonb)', args) AS again
WHERE first::text IS NOT DISTINCT FROM again::text
ORDER BY nr;
SELECT count(*) FROM happened();
SELECT status, result FROM idem_lookup('echo:2');

-- a result that is stored out of line
CREATE FUNCTION long_text(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO run_test.ledger (what) VALUES ('long');
	SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 2000) i;
$$;
SELECT length(idem_run('long', 'long_text(jsonb)') ->> 0);
SELECT idem_run('long', 'long_text(jsonb)') = long_text('{}') AS same;
SELECT happened();

-- how long it is remembered
SELECT expires_at - completed_at AS memory
FROM idem_run('memory', 'charge(jsonb)', ttl => '90 seconds'),
	idem_lookup('memory');
SELECT expires_at - completed_at AS memory FROM idem_lookup('once');
UPDATE idempotency_keys SET expires_at = clock_timestamp() WHERE key = 'memory';
SELECT idem_run('memory', 'charge(jsonb)') ->> 'charge' IS NOT NULL AS ran;
SELECT happened();

--
-- The fingerprint is over the tool and its arguments
--
SELECT fingerprint = idem_fingerprint(
	'{"tool": "run_test.charge(jsonb)", "args": {"amount": 4200}}') AS as_documented
FROM idempotency_keys WHERE key = 'once' AND scope = '';

-- whatever the settings, and with names that must be quoted
SET quote_all_identifiers = on;
SELECT idem_run('once', 'charge(jsonb)', '{"amount": 4200}') -> 'amount' AS amount;
RESET quote_all_identifiers;
CREATE FUNCTION "Charge ""now"""(args jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT args';
SELECT idem_run('quoted', '"Charge ""now"""(jsonb)');
SELECT fingerprint = idem_fingerprint(
	'{"tool": "run_test.\"Charge \"\"now\"\"\"(jsonb)", "args": {}}') AS as_documented
FROM idempotency_keys WHERE key = 'quoted';

-- the same whatever the order of members and the spelling of numbers
SELECT idem_run('binding', 'charge(jsonb)', '{"amount": 1, "x": {"a": 1, "b": 2}}') ->> 'amount' AS first,
	idem_run('binding', 'charge(jsonb)', '{"x": {"b": 2.0, "a": 1e0}, "amount": 1}') ->> 'amount' AS again;
SELECT error_of($$SELECT idem_run('binding', 'charge(jsonb)', '{"amount": 2}')$$);
SELECT error_of($$SELECT idem_run('binding', 'echo(jsonb)', '{"amount": 1, "x": {"a": 1, "b": 2}}')$$);
-- integers beyond 64 bits are exact
SELECT idem_run('big', 'charge(jsonb)', '{"amount": 18446744073709551616}') -> 'amount' AS amount;
SELECT error_of($$SELECT idem_run('big', 'charge(jsonb)', '{"amount": 18446744073709551617}')$$);
-- fields that rotate are left out by the caller, if the tool can do without
SELECT idem_run('rotating', 'charge(jsonb)', '{"amount": 7, "ts": 1}'::jsonb - '{ts,token}'::text[]) -> 'amount' AS first,
	idem_run('rotating', 'charge(jsonb)', '{"amount": 7, "ts": 2}'::jsonb - '{ts,token}'::text[]) -> 'amount' AS again;
SELECT count(*) FROM happened();

--
-- A tool that raises: nothing has happened, the key is free
--
CREATE FUNCTION decline(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO run_test.ledger (what) VALUES ('decline');
	IF args ? 'decline' THEN
		RAISE 'card declined' USING ERRCODE = 'UE001';
	END IF;
	RETURN '"accepted"';
END $$;
SELECT error_of($$SELECT idem_run('raises', 'decline(jsonb)', '{"decline": 1}')$$);
SELECT happened();
SELECT * FROM idem_lookup('raises');

-- also if the caller catches the error and goes on in his transaction
BEGIN;
SELECT error_of($$SELECT idem_run('raises', 'decline(jsonb)', '{"decline": 1}')$$);
SELECT * FROM idem_lookup('raises');
SELECT idem_run('raises', 'decline(jsonb)', '{}');
COMMIT;
SELECT happened();
SELECT status, attempt, token IS NOT NULL AS has_token, result
FROM idempotency_keys WHERE key = 'raises';

-- and with the transaction
BEGIN;
SELECT idem_run('rolled back', 'charge(jsonb)') -> 'amount';
ROLLBACK;
SELECT happened();
SELECT * FROM idem_lookup('rolled back');

--
-- Nested
--
CREATE FUNCTION order_item(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO run_test.ledger (what) VALUES ('order');
	RETURN jsonb_build_array('order',
		idem_run(args ->> 'inner', 'charge(jsonb)', '{"amount": 5}', wait => '1 min') -> 'amount');
END $$;
SELECT idem_run('outer', 'order_item(jsonb)', '{"inner": "inner"}');
SELECT idem_run('outer', 'order_item(jsonb)', '{"inner": "inner"}');
SELECT happened();
-- the inner step has run already: only the outer one is new
SELECT idem_run('outer 2', 'order_item(jsonb)', '{"inner": "inner"}');
SELECT happened();

-- under its own key it would wait for itself: refused at once
SET statement_timeout = '30s';
SELECT error_of($$SELECT idem_run('self', 'order_item(jsonb)', '{"inner": "self"}')$$);
RESET statement_timeout;
SELECT happened();
SELECT * FROM idem_lookup('self');

-- a tool may look at its key, and settle it as it will be settled
CREATE FUNCTION settles(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO run_test.ledger
		SELECT FROM idem_lookup(args ->> 'key') AS l WHERE l.status <> 'in_progress';
	EXECUTE args ->> 'do';
	RETURN '"result"';
END $$;
SELECT idem_run('settles', 'settles(jsonb)',
	$${"key": "settles", "do": "SELECT idem_complete('settles', '\"result\"')"}$$);
SELECT error_of($$SELECT idem_run('settles 2', 'settles(jsonb)',
	'{"key": "settles 2", "do": "SELECT idem_complete(''settles 2'', ''1'')"}')$$);
SELECT error_of($$SELECT idem_run('settles 3', 'settles(jsonb)',
	'{"key": "settles 3", "do": "SELECT idem_release(''settles 3'')"}')$$);
SELECT error_of($$SELECT idem_run('settles 4', 'settles(jsonb)',
	'{"key": "settles 4", "do": "SELECT idem_release(''settles 4''), (idem_reserve(''settles 4'')).token"}')$$);
SELECT key, status FROM idempotency_keys WHERE key LIKE 'settles%';
SELECT happened();

-- it may run for longer than its lease: what is not committed is not lost
SET idem_tool.reservation_ttl = '1s';
CREATE FUNCTION slow(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT pg_sleep(1.1);
	SELECT to_jsonb(l.status) FROM idem_lookup(args ->> 'key') AS l;
$$;
SELECT idem_run('slow', 'slow(jsonb)', '{"key": "slow"}') AS seen_inside;
SELECT status, attempt, maybe_ran FROM idem_lookup('slow');
RESET idem_tool.reservation_ttl;

--
-- What somebody else has made of the key
--
-- in progress
SELECT status FROM idem_reserve('theirs', '10 min');
SELECT error_of($$SELECT idem_run('theirs', 'charge(jsonb)')$$);
SELECT error_of($$SELECT idem_run('theirs', 'charge(jsonb)', wait => '50 ms')$$);
-- lapsed, and may not be taken over
UPDATE idempotency_keys SET expires_at = clock_timestamp() WHERE key = 'theirs';
SET idem_tool.takeover = 0;
SELECT error_of($$SELECT idem_run('theirs', 'charge(jsonb)')$$);
RESET idem_tool.takeover;
-- and may
SELECT idem_run('theirs', 'charge(jsonb)') -> 'amount' AS amount;
SELECT status, attempt, maybe_ran FROM idem_lookup('theirs');
SELECT happened();

-- failed: the stored error, byte for byte; without one, null
SELECT idem_fail('failed', '{"code": "card_declined", "n": 1.50}', token)
FROM idem_reserve('failed');
SELECT error_of($$SELECT idem_run('failed', 'charge(jsonb)')$$);
SELECT idem_fail('failed 2', NULL, token, '-1 s'::interval * -1000000)
FROM idem_reserve('failed 2');
SELECT error_of($$SELECT idem_run('failed 2', 'charge(jsonb)')$$);
SELECT idem_fail('failed 3', 'null', token) FROM idem_reserve('failed 3');
SELECT error_of($$SELECT idem_run('failed 3', 'charge(jsonb)')$$);

-- reserved before by the same transaction: done by hand or not at all
BEGIN;
SELECT status FROM idem_reserve('mine');
SELECT error_of($$SELECT idem_run('mine', 'charge(jsonb)', wait => '1 hour')$$);
ROLLBACK;

-- reserved by hand, for this request and for another
SELECT status FROM idem_reserve('by hand', request =>
	'{"tool": "run_test.charge(jsonb)", "args": {"amount": 8}}');
SELECT idem_release('by hand', token) FROM idempotency_keys WHERE key = 'by hand';
SELECT error_of($$SELECT idem_run('by hand', 'charge(jsonb)', '{"amount": 9}')$$);
SELECT idem_run('by hand', 'charge(jsonb)', '{"amount": 8}') -> 'amount' AS amount;
SELECT attempt, maybe_ran FROM idem_lookup('by hand');
SELECT happened();

--
-- Isolation levels, READ ONLY
--
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idem_run('rr', 'charge(jsonb)') -> 'amount', idem_run('rr', 'charge(jsonb)') -> 'amount';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idem_run('rr', 'charge(jsonb)') -> 'amount', idem_run('ser', 'charge(jsonb)') -> 'amount';
COMMIT;
SELECT happened();
BEGIN READ ONLY;
SELECT idem_run('ser', 'charge(jsonb)') -> 'amount';
SELECT error_of($$SELECT idem_run('ro', 'charge(jsonb)')$$);
COMMIT;

--
-- Rights: the caller's, nobody else's
--
CREATE ROLE regress_run_caller;
CREATE ROLE regress_run_other;
SELECT idem_grant('regress_run_caller');
GRANT USAGE ON SCHEMA run_test TO regress_run_caller;
GRANT INSERT ON ledger TO regress_run_caller;
CREATE FUNCTION whoami(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO run_test.ledger (what) VALUES ('whoami');
	SELECT to_jsonb(current_user::text);
$$;
CREATE FUNCTION whoami_definer(args jsonb) RETURNS jsonb LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog AS $$
	SELECT to_jsonb((current_user <> session_user) || ' ' || current_setting('search_path'));
$$;
CREATE FUNCTION closed(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO run_test.ledger (what) VALUES ('closed') RETURNING args;
$$;
REVOKE ALL ON FUNCTION closed(jsonb) FROM PUBLIC;
ALTER FUNCTION whoami_definer(jsonb) OWNER TO regress_run_other;
SET ROLE regress_run_caller;
SELECT idem_run('who', 'whoami(jsonb)'), idem_run('who 2', 'whoami_definer(jsonb)'), current_user;
SELECT error_of($$SELECT idem_run('who 3', 'closed(jsonb)')$$);
-- the replay of a tool that he may not call is not his either
RESET ROLE;
SELECT idem_run('shared', 'closed(jsonb)');
SET ROLE regress_run_caller;
SELECT error_of($$SELECT idem_run('shared', 'closed(jsonb)')$$);
-- what the tool may not, it may not under a key
SELECT error_of($$SELECT idem_run('who 4', 'charge(jsonb)')$$);
-- somebody else's key
SELECT error_of($$SELECT idem_run('once', 'whoami(jsonb)')$$);
RESET ROLE;
SELECT key, owner FROM idempotency_keys WHERE key LIKE 'who%' ORDER BY key;
SELECT happened();

-- two roles of one tenant share their keys by a common owner, and no others
CREATE ROLE regress_run_team ROLE regress_run_caller, regress_run_other;
SELECT idem_grant('regress_run_other');
GRANT USAGE ON SCHEMA run_test TO regress_run_other;
GRANT INSERT ON ledger TO regress_run_other;
SET idem_tool.owner = 'regress_run_team';
SET ROLE regress_run_caller;
SELECT idem_run('team', 'whoami(jsonb)');
SET ROLE regress_run_other;
SELECT idem_run('team', 'whoami(jsonb)');
RESET idem_tool.owner;
SELECT idem_run('team', 'whoami(jsonb)');
SELECT error_of($$SELECT idem_run('who', 'whoami(jsonb)')$$);
SELECT idem_run('who', 'whoami(jsonb)', scope => 'other tenant');
RESET ROLE;
SELECT happened();

--
-- Bad arguments
--
SELECT error_of($$SELECT idem_run(NULL, 'charge(jsonb)')$$);
SELECT error_of($$SELECT idem_run('', 'charge(jsonb)')$$);
SELECT error_of($$SELECT idem_run(E'a\nb', 'charge(jsonb)')$$);
SELECT error_of($$SELECT idem_run(repeat('x', 1025), 'charge(jsonb)')$$);
SELECT error_of($$SELECT idem_run('bad', NULL)$$);
SELECT error_of($$SELECT idem_run('bad', 'no_such(jsonb)')$$);
SELECT error_of($$SELECT idem_run('bad', 4294967295::oid::regprocedure)$$);
SELECT error_of($$SELECT idem_run('bad', 'charge(jsonb)', ttl => '0')$$);
SELECT error_of($$SELECT idem_run('bad', 'charge(jsonb)', wait => '-1 s')$$);
SELECT error_of($$SELECT idem_run('bad', 'charge(jsonb)', wait => '2 hours')$$);
SELECT error_of($$SELECT idem_run('bad', 'charge(jsonb)', scope => E'a\tb')$$);

-- what is no function from jsonb to jsonb
CREATE DOMAIN document AS jsonb;
CREATE FUNCTION of_text(text) RETURNS jsonb LANGUAGE sql AS 'SELECT ''{}''::jsonb';
CREATE FUNCTION to_text(jsonb) RETURNS text LANGUAGE sql AS 'SELECT $1::text';
CREATE FUNCTION of_two(jsonb, int DEFAULT 0) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION of_many(VARIADIC jsonb[]) RETURNS jsonb LANGUAGE sql AS 'SELECT $1[1]';
CREATE FUNCTION of_domain(document) RETURNS jsonb LANGUAGE sql AS 'SELECT $1::jsonb';
CREATE FUNCTION to_domain(jsonb) RETURNS document LANGUAGE sql AS 'SELECT $1::document';
CREATE FUNCTION to_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION of_any(anyelement) RETURNS anyelement LANGUAGE sql AS 'SELECT $1';
CREATE PROCEDURE a_procedure(jsonb) LANGUAGE sql AS '';
CREATE AGGREGATE an_aggregate(jsonb) (sfunc = jsonb_concat, stype = jsonb);
CREATE FUNCTION with_out(IN args jsonb, OUT result jsonb) LANGUAGE sql AS 'SELECT $1';
SELECT split_part(error_of(format('SELECT idem_run(''bad'', %L)', oid::regprocedure)),
				  E'\n', 1) AS failure
FROM pg_proc
WHERE pronamespace = 'run_test'::regnamespace
AND proname ~ '^(of|to|a|an)_'
ORDER BY proname COLLATE "C";
SELECT idem_run('with_out', 'with_out(jsonb)');

-- a result that is too large takes everything back
SET idem_tool.max_result_size = 1000;
SELECT error_of($$SELECT idem_run('large', 'long_text(jsonb)')$$);
RESET idem_tool.max_result_size;
-- so does one that nobody could read
CREATE FUNCTION digits(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
	INSERT INTO run_test.ledger (what) VALUES ('digits');
	SELECT jsonb_agg('1e131000'::jsonb) FROM generate_series(1, (args ->> 'n')::int);
$$;
SELECT error_of($$SELECT idem_run('large', 'digits(jsonb)', '{"n": 9000}')$$);
SELECT happened();
-- an error that was recorded by hand is a failure all the same
SELECT idem_fail('unreadable', NULL, token) FROM idem_reserve('unreadable');
UPDATE idempotency_keys SET result = digits('{"n": 9000}') WHERE key = 'unreadable';
SELECT error_of($$SELECT idem_run('unreadable', 'charge(jsonb)')$$);
SELECT happened();
SELECT * FROM idem_lookup('large');
SELECT * FROM idem_lookup('bad');

--
-- A trigger that stores another result: everybody gets that one
--
CREATE FUNCTION redact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.result := NEW.result - 'charge';
	RETURN NEW;
END $$;
CREATE TRIGGER redact BEFORE UPDATE ON idempotency_keys FOR EACH ROW
WHEN (NEW.key = 'redacted') EXECUTE FUNCTION redact();
SELECT idem_run('redacted', 'charge(jsonb)', '{"amount": 3}') AS first,
	idem_run('redacted', 'charge(jsonb)', '{"amount": 3}') AS again;
DROP TRIGGER redact ON idempotency_keys;
SELECT happened();

--
-- Many in one transaction: no subtransaction, and the tools are counted
--
SET track_functions = 'all';
BEGIN;
CREATE FUNCTION count_me(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS
	'BEGIN RETURN args; END';
SELECT count(idem_run('many:' || i, 'count_me(jsonb)', to_jsonb(i)))
FROM generate_series(1, 1000) AS i;
SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'count_me';
SELECT count(DISTINCT xmin::text) AS xids FROM idempotency_keys WHERE key LIKE 'many:%';
COMMIT;
RESET track_functions;

SET client_min_messages = warning;
DELETE FROM idempotency_keys;
DROP SCHEMA run_test CASCADE;
DROP OWNED BY regress_run_caller, regress_run_other;
DROP ROLE regress_run_caller, regress_run_other, regress_run_team;
