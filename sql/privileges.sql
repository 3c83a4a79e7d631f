--
-- Who may do what: PUBLIC nothing, idem_grant's parts, a key's owner and its
-- members, row security.
--
\pset format unaligned
\pset null '(null)'
SET statement_timeout = '20s';
-- left over from a run that was interrupted
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_idem_alice, regress_idem_bob, regress_idem_app,
	regress_idem_outsider, regress_idem_gone, regress_idem_other,
	regress_idem_ops,
	"regress_idem ""Odd"" role";
RESET client_min_messages;
CREATE ROLE regress_idem_alice;
CREATE ROLE regress_idem_bob;
CREATE ROLE regress_idem_app;
CREATE ROLE regress_idem_ops;
CREATE ROLE regress_idem_outsider;
CREATE ROLE "regress_idem ""Odd"" role";

-- a role that was granted nothing can call nothing and see nothing
CREATE FUNCTION calls() RETURNS TABLE (call text, answer text) LANGUAGE sql
	AS $$
	SELECT call, outcome_of('SELECT * FROM ' || call)
	FROM unnest(ARRAY[
		'idem_reserve(''k'')', 'idem_complete(''k'')', 'idem_fail(''k'')',
		'idem_release(''k'')',
		'idem_abandon(''k'')', 'idem_extend(''k'')', 'idem_lookup(''k'')',
		'idem_grant(''regress_idem_outsider'')',
		'idem_grant(''regress_idem_outsider'', ''operator'')',
		'(SELECT count(*) FROM idempotency_keys) AS k',
		'(SELECT last_value FROM idempotency_keys_token_seq) AS s',
		'nextval(''idempotency_keys_token_seq'')']) AS call
$$;
SET ROLE regress_idem_outsider;
SELECT * FROM calls();
\set VERBOSITY sqlstate
INSERT INTO idempotency_keys (key) VALUES ('x');
UPDATE idempotency_keys SET status = 'done';
DELETE FROM idempotency_keys;
TRUNCATE idempotency_keys;
SELECT FROM idempotency_keys FOR UPDATE;
COPY idempotency_keys TO STDOUT;
SELECT setval('idempotency_keys_token_seq', 1);
\set VERBOSITY default
SELECT idem_reserve('k');
RESET ROLE;
SELECT count(*) FROM idempotency_keys;

--
-- idem_grant
--
SELECT idem_grant('regress_idem_alice');
SELECT idem_grant(role => 'regress_idem_bob', part => 'caller');
SELECT idem_grant('"regress_idem ""Odd"" role"', 'monitor');
SELECT idem_grant('regress_idem_ops', 'operator');
SELECT idem_grant('regress_idem_app');
-- again is no error
SELECT idem_grant('regress_idem_alice');
CREATE FUNCTION may(role name) RETURNS TABLE (object text, privileges text)
	LANGUAGE sql AS $$
	SELECT p.proname, 'EXECUTE'
	FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass
		 AND d.objid = p.oid AND d.deptype = 'e'
		 JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass
		 AND d.refobjid = e.oid
	WHERE e.extname = 'idem_tool'
	AND has_function_privilege(role, p.oid, 'EXECUTE')
	AND p.proname NOT IN ('idem_canonical', 'idem_fingerprint', 'idem_key',
						  'idem_step_key', 'idem_call_key')
	UNION ALL
	SELECT relname, array_to_string(ARRAY(
		SELECT privilege
		FROM unnest(CASE relkind WHEN 'r'
					THEN ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE',
							   'TRUNCATE',
											   'REFERENCES', 'TRIGGER'] END)
											   AS privilege
		WHERE has_table_privilege(role, oid, privilege)
		UNION ALL
		SELECT privilege
		FROM unnest(CASE relkind WHEN 'S'
					THEN ARRAY['SELECT', 'USAGE', 'UPDATE'] END) AS privilege
		WHERE has_sequence_privilege(role, oid, privilege)), ' ')
	FROM pg_class
		 WHERE relname IN ('idempotency_keys', 'idempotency_keys_token_seq')
	ORDER BY 1
$$;
SELECT * FROM may('regress_idem_outsider');
SELECT * FROM may('regress_idem_alice');
SELECT * FROM may('regress_idem "Odd" role');
SELECT * FROM may('regress_idem_ops');
-- bad arguments
SELECT error_of($$SELECT idem_grant(NULL)$$);
SELECT error_of($$SELECT idem_grant(0::regrole)$$);
SELECT error_of($$SELECT idem_revoke(4294967295::oid::regrole, 'operator')$$);
SELECT error_of($$SELECT idem_revoke('regress_idem_alice', 'king')$$);
SELECT error_of($$SELECT idem_grant('regress_idem_alice', NULL)$$);
SELECT error_of($$SELECT idem_grant('regress_idem_alice', 'boss')$$);
SELECT error_of($$SELECT idem_grant('regress_idem_alice', '')$$);
SELECT error_of($$SELECT idem_grant('regress_idem_alice', 'Caller')$$);
SELECT error_of($$SELECT idem_grant('regress_idem_nobody')$$);
-- a caller cannot pass it on
SET ROLE regress_idem_alice;
SELECT outcome_of($$SELECT idem_grant('regress_idem_outsider')$$);
RESET ROLE;
SELECT object, privileges FROM may('regress_idem_outsider')
WHERE privileges <> '';

--
-- A caller needs no privilege on the table
--
SET ROLE regress_idem_alice;
SELECT status, token FROM idem_reserve('alice', request => '1') \gset
SELECT :'status' AS status;
SELECT idem_extend('alice', '1 hour', :token) IS NOT NULL AS extended;
SELECT idem_release('alice', :token);
SELECT status, token FROM idem_reserve('alice') \gset
SELECT idem_abandon('alice', :token);
SELECT status, token FROM idem_reserve('alice') \gset
SELECT idem_complete('alice', '"secret"', :token);
SELECT status, result FROM idem_reserve('alice');
SELECT status, owner, result FROM idem_lookup('alice');
SELECT error_of('SELECT count(*) FROM idempotency_keys');
RESET ROLE;
SELECT key, owner FROM idempotency_keys;

--
-- Another role's key, in each state: 42501, and no more than that
--
TRUNCATE idempotency_keys;
CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('in_progress'), ('lapsed'), ('expired'), ('released'), ('done'),
	('failed');
SELECT count(make_state(state, state)) FROM states;
UPDATE idempotency_keys SET owner = 'regress_idem_alice', holder = 'h',
	fingerprint = idem_fingerprint('1'),
	result = result || '["secret"]';
CREATE TEMP TABLE tokens AS SELECT key, token, version_of(key)
FROM idempotency_keys;
GRANT SELECT ON states, tokens TO PUBLIC;
SET ROLE regress_idem_bob;
SELECT error_of($$SELECT idem_reserve('done')$$);
SELECT error_of($$SELECT idem_complete('done', '1', 1)$$);
SELECT count(DISTINCT call) AS calls, count(*), error
FROM states JOIN tokens ON key = state,
	 unnest(ARRAY['idem_reserve(%1$L)',
				  'idem_reserve(%1$L, request => ''2'')',
				  'idem_reserve(%1$L, request => ''1'', wait => ''1 hour'')',
				  'idem_reserve(%1$L, holder => ''h'', takeover => ''0'')',
				  'idem_lookup(%1$L)',
				  'idem_complete(%1$L, ''"r"'', %2$s)', 'idem_complete(%1$L)',
				  'idem_complete(%1$L, token => -1)',
				  'idem_fail(%1$L, ''"r"'', %2$s)', 'idem_fail(%1$L)',
				  'idem_release(%1$L, %2$s)', 'idem_release(%1$L)',
				  'idem_release(%1$L, -1)',
				  'idem_abandon(%1$L, %2$s)', 'idem_abandon(%1$L)',
				  'idem_abandon(%1$L, -1)',
				  'idem_extend(%1$L, token => %2$s)', 'idem_extend(%1$L)'])
				  AS call,
	 replace(error_of('SELECT * FROM ' || format(call, state, token)), state,
			 '*') AS error
GROUP BY error;
-- bad arguments come before it
SELECT outcome_of($$SELECT idem_complete('done', '1', NULL)$$),
	   outcome_of($$SELECT idem_reserve('done', '0')$$);
-- in another scope the key is free
SELECT status FROM idem_reserve('done', scope => 'bob');
RESET ROLE;
SELECT count(*) FROM tokens AS t
WHERE version_of(key) IS DISTINCT FROM t.version_of;
-- so is the superuser, who would otherwise believe what anybody has recorded
SELECT status, result FROM idem_reserve('done');
-- past its memory a key is free for everybody, and the new one's
SELECT let_pass('done');
SET ROLE regress_idem_bob;
SELECT count(*) FROM idem_lookup('done');
SELECT status, attempt FROM idem_reserve('done', request => '2');
SELECT status, owner FROM idem_lookup('done');
SET ROLE regress_idem_alice;
SELECT outcome_of($$SELECT idem_reserve('done')$$);
RESET ROLE;

-- one's own transaction's comes before it, for idem_reserve
BEGIN;
SET LOCAL ROLE regress_idem_alice;
SELECT status FROM idem_reserve('switched');
SET LOCAL ROLE regress_idem_bob;
SELECT status FROM idem_reserve('switched');
SELECT outcome_of($$SELECT idem_complete('switched')$$),
	   outcome_of($$SELECT idem_lookup('switched')$$);
ROLLBACK;

--
-- Members of the owner may, by inheritance or not
--
GRANT regress_idem_alice TO regress_idem_bob;
SET ROLE regress_idem_bob;
SELECT status, result FROM idem_reserve('failed');
SELECT status FROM idem_reserve('in_progress');
SELECT idem_complete('in_progress', '"by bob"', token) FROM tokens
WHERE key = 'in_progress';
SELECT status, attempt FROM idem_reserve('lapsed');
SELECT status, owner FROM idem_lookup('lapsed');
RESET ROLE;
REVOKE regress_idem_alice FROM regress_idem_bob;
SET ROLE regress_idem_bob;
SELECT outcome_of($$SELECT idem_reserve('failed')$$),
	   outcome_of($$SELECT idem_reserve('lapsed')$$);
RESET ROLE;
-- over two steps
GRANT regress_idem_alice TO regress_idem_app;
GRANT regress_idem_app TO regress_idem_bob;
SET ROLE regress_idem_bob;
SELECT status FROM idem_reserve('failed');
RESET ROLE;
REVOKE regress_idem_alice FROM regress_idem_app;
ALTER ROLE regress_idem_bob NOINHERIT;
SET ROLE regress_idem_bob;
SELECT outcome_of($$SELECT idem_reserve('failed')$$);
RESET ROLE;

--
-- idem_tool.owner: one owner for many logins
--
TRUNCATE idempotency_keys;
GRANT regress_idem_app TO regress_idem_alice;
SET ROLE regress_idem_alice;
SET idem_tool.owner = 'regress_idem_app';
SELECT status, token FROM idem_reserve('shared') \gset
SELECT owner FROM idem_lookup('shared');
SET ROLE regress_idem_bob;
RESET idem_tool.owner;
SELECT status FROM idem_reserve('shared');
SELECT idem_complete('shared', '1', :token);
SELECT status, result FROM idem_reserve('shared');
-- the setting names the owner of new keys, and moves no others
SET idem_tool.owner = 'regress_idem_bob';
SELECT status, result FROM idem_reserve('shared');
SELECT owner FROM idem_lookup('shared');
-- one must be a member of it
SET idem_tool.owner = 'regress_idem_outsider';
SELECT error_of($$SELECT idem_reserve('stolen')$$);
SELECT status FROM idem_reserve('shared');
SET idem_tool.owner = 'regress_idem_nobody';
SELECT error_of($$SELECT idem_reserve('stolen')$$);
SET idem_tool.owner = 'Regress_idem_app';
SELECT outcome_of($$SELECT idem_reserve('stolen')$$);
SET idem_tool.owner = 'public';
SELECT outcome_of($$SELECT idem_reserve('stolen')$$);
RESET idem_tool.owner;
RESET ROLE;
SELECT count(*) FROM idempotency_keys;
-- names that want quoting are not quoted in the setting
GRANT "regress_idem ""Odd"" role" TO regress_idem_alice;
SET ROLE regress_idem_alice;
SET idem_tool.owner = 'regress_idem "Odd" role';
SELECT status FROM idem_reserve('odd');
SELECT owner FROM idem_lookup('odd');
RESET idem_tool.owner;
RESET ROLE;
-- the superuser's power is not membership
SET idem_tool.owner = 'regress_idem_outsider';
SELECT status FROM idem_reserve('for an outsider');
SELECT owner FROM idem_lookup('for an outsider');
SET idem_tool.owner = 'regress_idem_nobody';
SELECT outcome_of($$SELECT idem_reserve('for nobody')$$);
RESET idem_tool.owner;
-- current_user counts, not session_user
CREATE FUNCTION as_app() RETURNS text
	LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$ SELECT status FROM idem_reserve('definer') $$;
ALTER FUNCTION as_app() OWNER TO regress_idem_app;
SET ROLE regress_idem_outsider;
SELECT as_app();
RESET ROLE;
SELECT owner FROM idempotency_keys WHERE key = 'definer';
DROP FUNCTION as_app();

--
-- A role that is gone, or renamed
--
TRUNCATE idempotency_keys;
CREATE ROLE regress_idem_gone;
SELECT idem_grant('regress_idem_gone');
SET ROLE regress_idem_gone;
SELECT status FROM idem_reserve('gone');
SELECT status FROM idem_reserve('renamed');
RESET ROLE;
DROP OWNED BY regress_idem_gone;
DROP ROLE regress_idem_gone;
SET ROLE regress_idem_alice;
SELECT outcome_of($$SELECT idem_reserve('gone')$$),
	   outcome_of($$SELECT idem_lookup('gone')$$),
	   outcome_of($$SELECT idem_release('gone', 1)$$);
RESET ROLE;
SELECT status FROM idem_reserve('gone');
SELECT idem_complete('gone', '1', token_of('gone'));
SELECT status, owner FROM idem_lookup('gone');
-- a new role of the old name is the owner again
CREATE ROLE regress_idem_gone;
SELECT idem_grant('regress_idem_gone');
SET ROLE regress_idem_gone;
SELECT status, result FROM idem_reserve('gone');
RESET ROLE;
ALTER ROLE regress_idem_gone RENAME TO regress_idem_other;
SET ROLE regress_idem_other;
SELECT outcome_of($$SELECT idem_reserve('gone')$$);
RESET ROLE;
ALTER ROLE regress_idem_other RENAME TO regress_idem_gone;
SET ROLE regress_idem_gone;
SELECT status, result FROM idem_reserve('gone');
RESET ROLE;

--
-- Row security: who may read the table sees the rows that he may act on
--
TRUNCATE idempotency_keys;
INSERT INTO idempotency_keys (key, owner, created_at, reserved_at, token,
	attempt, maybe_ran, expires_at, completed_at, status, result)
SELECT owner, owner, now(), now(), 1, 1, false, 'infinity', now(), 'done', '1'
FROM unnest(ARRAY['regress_idem_alice', 'regress_idem_bob',
				  'regress_idem_app', 'regress_idem_outsider',
				  'regress_idem "Odd" role', 'regress_idem_nobody', 'public',
				  '']) AS owner;
SET ROLE regress_idem_alice;
\set VERBOSITY sqlstate
SELECT count(*) FROM idempotency_keys;
RESET ROLE;
GRANT SELECT ON idempotency_keys TO regress_idem_alice, regress_idem_bob,
	regress_idem_outsider;
SET ROLE regress_idem_alice;
SELECT key FROM idempotency_keys ORDER BY key;
SELECT count(*) FROM idempotency_keys
WHERE result = '1' AND 1 / (owner <> 'regress_idem_bob')::int = 1;
-- reading is all
UPDATE idempotency_keys SET result = '2';
DELETE FROM idempotency_keys;
SELECT FROM idempotency_keys FOR UPDATE;
SET ROLE regress_idem_bob;
SELECT key FROM idempotency_keys ORDER BY key;
SET ROLE regress_idem_outsider;
SELECT key FROM idempotency_keys ORDER BY key;
SET ROLE "regress_idem ""Odd"" role";
SELECT key FROM idempotency_keys ORDER BY key;
-- and even who may write sees and changes no others
RESET ROLE;
GRANT ALL ON idempotency_keys TO regress_idem_outsider;
SET ROLE regress_idem_outsider;
UPDATE idempotency_keys SET result = '2';
DELETE FROM idempotency_keys;
INSERT INTO idempotency_keys (key, owner, created_at, reserved_at, token,
	attempt, maybe_ran, expires_at, completed_at, status, result)
VALUES ('x', 'regress_idem_outsider', now(), now(), 1, 1, false, 'infinity',
		now(), 'done', '1');
RESET ROLE;
\set VERBOSITY default
SELECT count(*), count(DISTINCT result) FROM idempotency_keys;
-- the superuser sees all, unless he does not want to
SELECT count(*) FROM idempotency_keys;
-- the functions do not depend on it
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
SET ROLE regress_idem_alice;
SELECT status FROM idem_reserve('regress_idem_alice');
SELECT status FROM idem_reserve('under force');
SELECT key FROM idempotency_keys ORDER BY key;
SET row_security = off;
SELECT status FROM idem_reserve('regress_idem_alice');
SELECT status FROM idem_reserve('without row security');
RESET row_security;
RESET ROLE;
ALTER TABLE idempotency_keys NO FORCE ROW LEVEL SECURITY;

TRUNCATE idempotency_keys;
DROP TABLE states, tokens;
DROP FUNCTION calls, may;
DROP OWNED BY regress_idem_ops, regress_idem_alice, regress_idem_bob, regress_idem_app,
	regress_idem_outsider, regress_idem_gone,
	"regress_idem ""Odd"" role";
DROP ROLE regress_idem_ops, regress_idem_alice, regress_idem_bob, regress_idem_app,
	regress_idem_outsider, regress_idem_gone,
	"regress_idem ""Odd"" role";
