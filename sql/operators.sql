--
-- idem_resolve, idem_forget, idem_audit, idem_stuck and who may use them.
--
\pset format unaligned
\pset null '(null)'
SET idem_tool.scope = 'operators';
CREATE SCHEMA operators_test;

-- Put a key into a state; its token, 0 if it has none
CREATE FUNCTION operators_test.make(key text, state text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	made bigint;
BEGIN
	IF state = 'absent' THEN
		RETURN 0;
	END IF;
	made := token FROM idem_reserve(make.key, '1 h', '{"amount": 1}', holder => 'h');
	CASE state
		WHEN 'in_progress' THEN NULL;
		WHEN 'lapsed', 'past memory' THEN
			UPDATE idempotency_keys AS k
			SET expires_at = clock_timestamp() - CASE state
				WHEN 'lapsed' THEN interval '1 second' ELSE interval '31 days' END
			WHERE k.key = make.key AND k.scope = 'operators';
		WHEN 'expired' THEN PERFORM idem_abandon(key);
		WHEN 'released' THEN PERFORM idem_release(key);
		WHEN 'done' THEN PERFORM idem_complete(key, '"r"');
		WHEN 'failed' THEN PERFORM idem_fail(key, '"r"');
	END CASE;
	RETURN made;
END $$;

--
-- Each status for a key in each state: as it is, and by the arguments for it
--
CREATE TABLE operators_test.calls AS
SELECT s.nr AS state_nr, c.nr AS call_nr, state, wanted, arguments,
	   concat_ws(' ', state, c.nr) AS key
FROM unnest(ARRAY['absent', 'past memory', 'in_progress', 'lapsed', 'expired', 'released', 'done',
				  'failed']) WITH ORDINALITY AS s (state, nr),
	 (VALUES (1, 'done', ''), (2, 'done', 'force'), (3, 'done', 'create_missing'),
			 (4, 'failed', ''), (5, 'failed', 'force'), (6, 'failed', 'create_missing'),
			 (7, 'released', ''), (8, 'released', 'force')) AS c (nr, wanted, arguments);
ALTER TABLE operators_test.calls ADD token bigint, ADD answer text;
UPDATE operators_test.calls SET token = operators_test.make(key, state);
UPDATE operators_test.calls SET answer = outcome_of(
	format('SELECT idem_resolve(%L, %L%s%s)', key, wanted,
		   CASE WHEN wanted <> 'released' THEN ', ''"r"''' END,
		   CASE WHEN arguments <> '' THEN ', ' || arguments || ' => true' END));
SELECT state, wanted,
	   max(answer) FILTER (WHERE arguments = '') AS plain,
	   max(answer) FILTER (WHERE arguments = 'force') AS force,
	   max(answer) FILTER (WHERE arguments = 'create_missing') AS create_missing
FROM operators_test.calls GROUP BY state_nr, state, wanted ORDER BY state_nr, wanted COLLATE "C";

-- what was written: the token stays, but that of a new key is higher
SELECT state, wanted, k.status, attempt, maybe_ran,
	   CASE WHEN k.token = calls.token THEN 'kept' WHEN k.token > calls.token THEN 'higher' END AS token,
	   fingerprint IS NOT NULL AS bound, k.owner = current_user AS own, holder,
	   completed_at > created_at AS completed_later, expires_at - clock_timestamp() BETWEEN '23 h' AND '24 h' AS a_day, result
FROM operators_test.calls JOIN idempotency_keys AS k USING (key)
WHERE answer = 'true' AND k.scope = 'operators' ORDER BY state_nr, call_nr;

-- the audit has every use that was not refused
SELECT DISTINCT state_nr, state, old_status, new_status COLLATE "C" AS new_status
FROM operators_test.calls JOIN idem_audit AS a USING (key)
WHERE a.scope = 'operators' AND a.action = 'resolve' AND role = current_user AND session_role = session_user
ORDER BY state_nr, new_status;
SELECT count(*) FILTER (WHERE answer IN ('true', 'false')) = (SELECT count(*) FROM idem_audit WHERE scope = 'operators') AS all
FROM operators_test.calls;

--
-- What the holder hears who comes late with his token
--
SELECT outcome_of(format('SELECT idem_complete(%L, ''"r"'', %s)', key, token)) AS complete,
	   outcome_of(format('SELECT idem_extend(%L, token => %s)', key, token)) AS extend
FROM operators_test.calls WHERE state = 'in_progress' AND wanted = 'released' AND arguments = 'force';
SELECT wanted,
	   outcome_of(format('SELECT idem_complete(%L, ''"r"'', %s)', key, calls.token)) AS complete,
	   outcome_of(format('SELECT idem_complete(%L, ''"other"'', %s)', key, calls.token)) AS complete_other,
	   outcome_of(format('SELECT idem_fail(%L, ''"r"'', %s)', key, calls.token)) AS fail,
	   outcome_of(format('SELECT idem_release(%L, %s)', key, calls.token)) AS release,
	   outcome_of(format('SELECT idem_abandon(%L, %s)', key, calls.token)) AS abandon,
	   outcome_of(format('SELECT idem_extend(%L, token => %s)', key, calls.token)) AS extend,
	   status AS next_caller, r.result, attempt, maybe_ran, r.token > calls.token AS new_token
FROM operators_test.calls, idem_reserve(key, request => '{"amount": 1}') AS r
WHERE state = 'in_progress' AND arguments = 'force' ORDER BY call_nr;
SELECT key, outcome_of(format('SELECT idem_complete(%L, ''"r"'', %s)', key, token)) AS late_complete
FROM operators_test.calls WHERE state = 'past memory' AND answer = 'true' ORDER BY call_nr;

-- maybe_ran is about earlier attempts: a release does not answer for them
SELECT operators_test.make('maybe', 'expired') > 0 AS made;
SELECT attempt, maybe_ran FROM idem_reserve('maybe', '1 h');
SELECT idem_resolve('maybe', 'released', force => true);
SELECT status, attempt, maybe_ran FROM idem_lookup('maybe');

-- ttl and scope; NULL for an optional argument means its default
SELECT idem_resolve('ttl', 'done', NULL, '72 hours', NULL, true, NULL, 'operators 2');
SELECT scope, status, result, expires_at - clock_timestamp() BETWEEN '71 h' AND '72 h' AS three_days
FROM idem_lookup('ttl', 'operators 2');
SELECT status, result FROM idem_reserve('ttl', request => '{"any": 1}', scope => 'operators 2');
SELECT idem_resolve('ttl', 'done', scope => 'operators 2');
SELECT outcome_of('SELECT idem_resolve(''ttl'', ''done'', ''null'', scope => ''operators 2'')') AS json_null;

--
-- Arguments
--
SELECT operators_test.make('args', 'in_progress') > 0 AS made;
SELECT idem_resolve(NULL, 'done');
SELECT idem_resolve('', 'done');
SELECT idem_resolve(E'a\nb', 'done');
SELECT idem_resolve('args', NULL);
SELECT idem_resolve('args', 'expired');
SELECT idem_resolve('args', 'done', ttl => '0');
SELECT idem_resolve('args', 'done', '"12345"', force => true, scope => NULL)
FROM set_config('idem_tool.max_result_size', '4', true);
SELECT idem_resolve('args', 'released', '1', force => true);
SELECT idem_resolve('args', 'released', ttl => '1 h', force => true);
SELECT idem_resolve('args', 'released', create_missing => true);
SELECT idem_resolve('args', 'done', owner => 'postgres');
SELECT idem_resolve('args', 'done', create_missing => true, owner => 'no such role');
SELECT idem_forget(NULL);
SELECT idem_forget('args', repeat('x', 256));
BEGIN READ ONLY;
SELECT idem_resolve('args', 'done', force => true);
ROLLBACK;
BEGIN READ ONLY;
SELECT idem_forget('none');
ROLLBACK;
SELECT status FROM idem_lookup('args');

-- what the errors say; not the result
SELECT operators_test.make('told', 'done') > 0 AS made, operators_test.make('unknown', 'lapsed') > 0 AS made;
CREATE FUNCTION operators_test.say(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ' ' || SQLERRM, regexp_replace(detail, 'expires at .*', 'expires ...'), hint);
END $$;
SELECT operators_test.say('SELECT idem_resolve(''args'', ''done'')');
SELECT operators_test.say('SELECT idem_resolve(''told'', ''done'', ''"mine"'')');
SELECT operators_test.say('SELECT idem_resolve(''none'', ''failed'')');
SELECT operators_test.say('SELECT idem_forget(''args'')');
SELECT operators_test.say('SELECT idem_forget(''unknown'')');

--
-- idem_forget
--
TRUNCATE operators_test.calls;
INSERT INTO operators_test.calls (state_nr, state, key)
SELECT nr, state, 'forget ' || state
FROM unnest(ARRAY['absent', 'past memory', 'in_progress', 'lapsed', 'expired', 'released', 'done',
				  'failed']) WITH ORDINALITY AS s (state, nr);
UPDATE operators_test.calls SET token = operators_test.make(key, state);
UPDATE operators_test.calls SET answer = outcome_of(format('SELECT idem_forget(%L)', key));
SELECT state, answer, (SELECT count(*) FROM idem_lookup(key)) AS known,
	   (SELECT old_status || ' ' || new_status FROM idem_audit AS a WHERE a.key = calls.key AND action = 'forget') AS audit
FROM operators_test.calls ORDER BY state_nr;

-- nothing of the old request is left
SELECT key, status, attempt, maybe_ran, fingerprint, holder, completed_at, result
FROM operators_test.calls JOIN idempotency_keys AS k USING (key)
WHERE answer = 'true' ORDER BY state_nr;

-- the late holder has no reservation; the next caller's token is higher even
-- when the sequence lags
BEGIN;
SELECT state, outcome_of(format('SELECT idem_complete(%L, ''"r"'', %s)', key, token)) AS late_complete
FROM operators_test.calls WHERE answer = 'true' ORDER BY state_nr;
SELECT last_value AS last_token FROM idempotency_keys_token_seq \gset
SELECT setval('idempotency_keys_token_seq', 1) AS lagging;
SAVEPOINT s;
SELECT state, idem_resolve(key, 'done', create_missing => true)
FROM operators_test.calls WHERE answer = 'true' ORDER BY state_nr;
SELECT state, status, attempt, k.token > calls.token AS higher
FROM operators_test.calls JOIN idempotency_keys AS k USING (key) WHERE answer = 'true' ORDER BY state_nr;
ROLLBACK TO s;
SELECT state, r.status, attempt, maybe_ran, r.token > calls.token AS higher,
	   outcome_of(format('SELECT idem_complete(%L, ''"r"'', %s)', key, calls.token)) AS late_complete
FROM operators_test.calls, idem_reserve(key, request => '{"amount": 2}') AS r
WHERE answer = 'true' ORDER BY state_nr;
ROLLBACK;
SELECT setval('idempotency_keys_token_seq', :last_token) > 1 AS restored;

-- what is rolled back leaves no row in the audit
BEGIN;
SELECT idem_forget('told');
SAVEPOINT s;
SELECT idem_resolve('told', 'done', create_missing => true);
ROLLBACK TO s;
SELECT action, old_status, new_status FROM idem_audit WHERE key = 'told';
SELECT status, attempt FROM idem_reserve('told', '1 h', '{"amount": 3}');
SELECT idem_resolve('told', 'failed', '"in one transaction"', force => true);
SELECT status, result FROM idem_reserve('told');
ROLLBACK;
SELECT count(*) FROM idem_audit WHERE key = 'told';
SELECT status, result FROM idem_lookup('told');

--
-- Who may
--
CREATE ROLE regress_idem_app;
CREATE ROLE regress_idem_gone;
CREATE ROLE regress_idem_operator;
CREATE ROLE regress_idem_monitor;
CREATE ROLE regress_idem_nobody;
SELECT idem_grant('regress_idem_app'), idem_grant('regress_idem_gone'),
	   idem_grant('regress_idem_operator', 'operator'), idem_grant('regress_idem_monitor', 'monitor');
SELECT p.oid::regprocedure AS function,
	   concat_ws(' ', CASE WHEN has_function_privilege('regress_idem_app', p.oid, 'EXECUTE') THEN 'caller' END,
				 CASE WHEN has_function_privilege('regress_idem_operator', p.oid, 'EXECUTE') THEN 'operator' END,
				 CASE WHEN has_function_privilege('regress_idem_monitor', p.oid, 'EXECUTE') THEN 'monitor' END) AS parts
FROM pg_proc AS p
WHERE p.proname IN ('idem_reserve', 'idem_complete', 'idem_fail', 'idem_release', 'idem_abandon',
					'idem_extend', 'idem_lookup', 'idem_resolve', 'idem_forget', 'idem_memory_end', 'idem_grant')
AND NOT has_function_privilege('regress_idem_nobody', p.oid, 'EXECUTE')
ORDER BY p.proname;
SELECT relname, role, array_to_string(array_agg(privilege ORDER BY privilege COLLATE "C") FILTER (
	WHERE has_table_privilege('regress_idem_' || role, c.oid, privilege)), ' ') AS privileges
FROM pg_class AS c, unnest('{nobody,app,operator,monitor}'::text[]) AS role,
	 unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS privilege
WHERE relname IN ('idempotency_keys', 'idem_audit', 'idem_stuck')
GROUP BY relname, role ORDER BY relname, role COLLATE "C";

GRANT USAGE ON SCHEMA operators_test TO PUBLIC;
SET ROLE regress_idem_app;
SELECT outcome_of('SELECT idem_resolve(''x'', ''done'')') AS resolve,
	   outcome_of('SELECT idem_forget(''x'')') AS forget,
	   outcome_of('SELECT count(*) FROM idem_stuck') AS stuck;
SELECT count(*) FROM unnest('{app 1,app 2}'::text[]) AS key, idem_reserve(key, '1 h') AS r, idem_abandon(key, r.token);
SET ROLE regress_idem_gone;
SELECT count(*) FROM unnest('{gone 1,gone 2}'::text[]) AS key, idem_reserve(key, '1 h') AS r, idem_abandon(key, r.token);
RESET ROLE;
DROP OWNED BY regress_idem_gone;
DROP ROLE regress_idem_gone;

-- an operator acts on any key, also of a role that is gone, but he sees only
-- what is left to him
SET ROLE regress_idem_operator;
SELECT key, owner FROM idem_stuck ORDER BY key COLLATE "C";
SELECT key FROM idempotency_keys WHERE key LIKE 'app%' OR key LIKE 'gone%' ORDER BY key COLLATE "C";
SELECT key, status, owner FROM idem_lookup('gone 1');
SELECT outcome_of('SELECT idem_lookup(''app 1'')') AS lookup;
SELECT idem_resolve('app 1', 'done', '"by hand"'), idem_resolve('gone 1', 'failed', '"by hand"'),
	   idem_forget('told');
SELECT idem_resolve('app 3', 'done', '"late"', create_missing => true, owner => 'regress_idem_app');
SELECT idem_resolve('mine', 'done', '"late"', create_missing => true);
SELECT idem_resolve('mine', 'done', '"late"', create_missing => true, owner => 'regress_idem_app');
SELECT outcome_of('INSERT INTO idem_audit SELECT * FROM idem_audit') AS insert,
	   outcome_of('DELETE FROM idem_audit') AS delete;
SET idem_tool.owner = regress_idem_app;
SELECT outcome_of('SELECT idem_resolve(''not mine'', ''done'', create_missing => true)') AS not_member;
RESET idem_tool.owner;
RESET ROLE;
SELECT role, session_role = session_user AS session_role, action, key, old_status, new_status
FROM idem_audit WHERE role = 'regress_idem_operator' ORDER BY at;
SELECT key, owner, status, result FROM idempotency_keys
WHERE key IN ('app 1', 'app 3', 'gone 1', 'mine') AND scope = 'operators' ORDER BY key;

-- a monitor sees what row security lets him, all keys as a member of their owner
SET ROLE regress_idem_monitor;
SELECT count(*) FROM idem_stuck;
SELECT count(*) > 0 AS audit FROM idem_audit;
SELECT outcome_of('SELECT idem_resolve(''app 2'', ''done'')') AS resolve;
RESET ROLE;
GRANT regress_idem_app TO regress_idem_monitor;
SET ROLE regress_idem_monitor;
SELECT key FROM idem_stuck;
RESET ROLE;

-- a function of that name that others made does not make them operators
CREATE FUNCTION idem_resolve(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
GRANT EXECUTE ON FUNCTION idem_resolve(int) TO regress_idem_app;
SET ROLE regress_idem_app;
SELECT outcome_of('SELECT idem_lookup(''gone 2'')') AS lookup;
RESET ROLE;
DROP FUNCTION idem_resolve(int);

-- nothing of the user's runs with the owner's rights, or in place of ours
CREATE TEMP TABLE idem_audit (LIKE idem_audit);
CREATE TEMP TABLE idempotency_keys (LIKE idempotency_keys);
GRANT ALL ON pg_temp.idem_audit, pg_temp.idempotency_keys TO PUBLIC;
SET search_path = pg_temp, public;
SELECT public.idem_resolve('shadow', 'done', create_missing => true);
SELECT count(*) AS real, (SELECT count(*) FROM pg_temp.idem_audit) AS shadow,
	   current_setting('search_path') AS search_path, current_user = session_user AS same_user
FROM public.idem_audit WHERE key = 'shadow';
RESET search_path;
DROP TABLE pg_temp.idem_audit, pg_temp.idempotency_keys;

-- what an administrator adds to the audit works
CREATE TABLE operators_test.seen (who name, rows bigint);
-- it runs as the owner of our tables, who has no part in others
GRANT INSERT ON operators_test.seen TO pg_database_owner;
CREATE FUNCTION operators_test.saw() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO operators_test.seen SELECT current_user, count(*) FROM new_rows;
	RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER INSERT ON idem_audit REFERENCING NEW TABLE AS new_rows
	FOR EACH STATEMENT EXECUTE FUNCTION operators_test.saw();
ALTER TABLE idem_audit ADD ticket text DEFAULT 'none';
CREATE INDEX audit_by_key ON idem_audit (key);
SET ROLE regress_idem_operator;
SELECT idem_resolve('app 2', 'failed');
RESET ROLE;
SET enable_seqscan = off;
SELECT ticket FROM idem_audit WHERE key = 'app 2';
RESET enable_seqscan;
SELECT who = (SELECT relowner::regrole::name FROM pg_class WHERE oid = 'idem_audit'::regclass) AS as_owner, rows
FROM operators_test.seen;
DROP TRIGGER seen ON idem_audit;
ALTER TABLE idem_audit DROP ticket;
DROP INDEX audit_by_key;

-- row security that is forced upon the owner is no obstacle, whatever the
-- operator's session makes of such things
ALTER TABLE idem_audit FORCE ROW LEVEL SECURITY;
ALTER TABLE idem_tools FORCE ROW LEVEL SECURITY;
SET row_security = off;
SET ROLE regress_idem_operator;
SELECT idem_resolve('forced', 'done', create_missing => true);
SELECT idem_register('forced'), idem_unregister('forced');
SHOW row_security;
RESET ROLE;
RESET row_security;
ALTER TABLE idem_audit NO FORCE ROW LEVEL SECURITY;
ALTER TABLE idem_tools NO FORCE ROW LEVEL SECURITY;

-- a use that cannot be recorded does not happen
CREATE FUNCTION operators_test.veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE INSERT ON idem_audit FOR EACH ROW EXECUTE FUNCTION operators_test.veto();
SELECT idem_forget('app 2');
DROP TRIGGER veto ON idem_audit;
CREATE TRIGGER veto BEFORE INSERT OR UPDATE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION operators_test.veto();
SELECT idem_forget('app 2');
SELECT idem_resolve('vetoed', 'done', create_missing => true);
DROP TRIGGER veto ON idempotency_keys;
SELECT status FROM idem_lookup('app 2');

-- the end of time is one
SELECT idem_memory_end('in_progress', '294276-12-31 23:00:00+00'), idem_memory_end('in_progress', 'infinity'),
	   idem_memory_end('in_progress', '-infinity'), idem_memory_end('done', '-infinity');

--
-- idem_stuck
--
UPDATE idempotency_keys SET reserved_at = '2001-01-01' WHERE key = 'forget expired' AND scope = 'operators';
SELECT key, holder, attempt, maybe_ran, stuck_for > '20 years' AS long_ago,
	   expires_at - clock_timestamp() BETWEEN '29 days' AND '31 days' AS for_a_month
FROM idem_stuck WHERE key LIKE 'forget%';
SELECT count(*) FROM idem_stuck
WHERE stuck_for NOT BETWEEN '0' AND '100 years' OR (SELECT count(*) FROM idem_lookup(key, scope) WHERE status = 'expired') = 0;

-- by the setting, also before the library is loaded
\c -
SELECT key FROM idem_stuck WHERE key = 'forget lapsed';
SET idem_tool.unknown_ttl = -1;
SELECT key, expires_at FROM idem_stuck WHERE key IN ('forget lapsed', 'forget past memory') ORDER BY key;
SET idem_tool.unknown_ttl = 1;
UPDATE idempotency_keys SET expires_at = clock_timestamp() - interval '2 s' WHERE key = 'forget lapsed';
SELECT key FROM idem_stuck WHERE key IN ('forget lapsed', 'forget past memory');
RESET idem_tool.unknown_ttl;

DELETE FROM idempotency_keys WHERE scope LIKE 'operators%';
TRUNCATE idem_audit;
DROP OWNED BY regress_idem_app, regress_idem_operator, regress_idem_monitor;
DROP ROLE regress_idem_app, regress_idem_operator, regress_idem_monitor, regress_idem_nobody;
\set VERBOSITY terse
SET client_min_messages = warning;
DROP SCHEMA operators_test CASCADE;
