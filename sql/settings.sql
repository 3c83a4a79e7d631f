--
-- Settings: defaults, limits, who may set them, what they do.
--
\pset format unaligned
\pset null '(null)'

-- before the library is there they are placeholders, and taken over by it
SET idem_tool.scope = 'early';
SET idem_tool.reservation_ttl = '7min';
SELECT status, expires_at - created_at AS lease FROM idem_reserve('k');
SELECT scope FROM idempotency_keys;
RESET idem_tool.scope;
RESET idem_tool.reservation_ttl;

SELECT name, boot_val, unit, vartype, context, min_val, max_val,
	   short_desc IS NOT NULL AS described
FROM pg_settings WHERE name LIKE 'idem\_tool.%' ORDER BY name COLLATE "C";
-- no others
SET idem_tool.nonsense = 1;
SHOW idem_tool.nonsense;

--
-- Values that make no sense
--
SELECT name, left(value, 12) AS value, octet_length(value) AS bytes, left(
	   outcome_of(format('SELECT set_config(%L, %L, true)',
						 'idem_tool.' || name, value)), 12) AS outcome
FROM (VALUES
	('reservation_ttl', '0'), ('reservation_ttl', '-1'),
	('reservation_ttl', '1'),
	('reservation_ttl', '100ms'), ('reservation_ttl', '1h'),
	('reservation_ttl', '2147483647'), ('reservation_ttl', '2147483648'),
	('reservation_ttl', 'x'), ('reservation_ttl', ''),
	('result_ttl', '0'), ('result_ttl', '-1'), ('result_ttl', '-2'),
	('result_ttl', '1'),
	('result_ttl', '10ms'), ('result_ttl', '2147483647'),
	('result_ttl', '30d'),
	('takeover', '0'), ('takeover', '-1'), ('takeover', '-2'),
	('takeover', '1'),
	('takeover', '2147483647'),
	('unknown_ttl', '0'), ('unknown_ttl', '-1'), ('unknown_ttl', '-2'),
	('unknown_ttl', '1'),
	('unknown_ttl', '2147483647'),
	('max_result_size', '-1'), ('max_result_size', '0'),
	('max_result_size', '1kB'),
	('max_result_size', '2147483647'), ('max_result_size', '1TB'),
	('durable', 'maybe'), ('durable', 'off'), ('session_tokens', '2'),
	('session_tokens', 'on'),
	('scope', ''), ('scope', 'x'), ('scope', repeat('x', 255)),
	('scope', repeat('x', 256)),
	('scope', repeat('ü', 127)), ('scope', repeat('ü', 128)), ('scope', ' '),
	('scope', E'a\tb'),
	('scope', E'\x7f'), ('scope', U&'a\0085'),
	('owner', ''), ('owner', 'nobody knows')
) AS v (name, value);
SET idem_tool.scope = '  ';
SET idem_tool.scope = E'a\nb';
SELECT set_config('idem_tool.scope', repeat('x', 256), false);
SET idem_tool.result_ttl = 0;
SET idem_tool.unknown_ttl = 0;
-- what is rounded to nothing says so
SET idem_tool.result_ttl = '100ms';
SET idem_tool.unknown_ttl = '1ms';
SET idem_tool.audit_ttl = '1ms';
SET idem_tool.max_reservation_ttl = '1ms';
SET idem_tool.max_result_ttl = '1ms';
SELECT outcome_of($$SET idem_tool.reservation_ttl = '100ms'$$);

-- the longest times still add up
SET idem_tool.reservation_ttl = 2147483647;
SET idem_tool.result_ttl = 2147483647;
SET idem_tool.unknown_ttl = 2147483647;
SET idem_tool.takeover = 2147483647;
BEGIN;
SELECT status, expires_at - created_at AS lease FROM idem_reserve('long');
SELECT idem_abandon('long');
SELECT expires_at > now() + interval '68 years' AS memory
FROM idem_lookup('long');
SELECT idem_extend('long') > now() + interval '68 years' AS extended;
SELECT idem_complete('long');
SELECT expires_at - completed_at AS memory FROM idem_lookup('long');
SELECT let_pass('long');
UPDATE idempotency_keys SET status = 'in_progress', completed_at = NULL
WHERE key = 'long';
SELECT status, expires_at > now() + interval '68 years' AS memory
FROM idem_lookup('long');
ROLLBACK;
RESET idem_tool.reservation_ttl;
RESET idem_tool.result_ttl;
RESET idem_tool.unknown_ttl;
RESET idem_tool.takeover;

--
-- Lease, memory, takeover: see also memory and takeover
--
TRUNCATE idempotency_keys;
SET idem_tool.reservation_ttl = '90s';
SET idem_tool.result_ttl = '2h';
SELECT status, token, expires_at - created_at AS lease
FROM idem_reserve('k') \gset
SELECT :'lease' AS lease;
SELECT idem_complete('k', '1', :token);
SELECT expires_at - completed_at AS memory FROM idem_lookup('k');
SELECT status, token FROM idem_reserve('f') \gset
SELECT idem_fail('f', '1', :token);
SELECT expires_at - completed_at AS memory FROM idem_lookup('f');
-- an argument is stronger
SELECT status, token, expires_at - created_at AS lease
FROM idem_reserve('a', '5 minutes') \gset
SELECT :'lease' AS lease;
SELECT idem_complete('a', '1', :token, '3 hours');
SELECT expires_at - completed_at AS memory FROM idem_lookup('a');
RESET idem_tool.reservation_ttl;
RESET idem_tool.result_ttl;

--
-- The scope: for every function, unless it is given one
--
TRUNCATE idempotency_keys;
SET idem_tool.scope = 'tenant 1';
SELECT status, token FROM idem_reserve('k') \gset
SELECT :'status' AS status;
SELECT scope, key FROM idempotency_keys;
SELECT idem_extend('k', token => :token) IS NOT NULL AS extended;
SELECT scope, status FROM idem_lookup('k');
SELECT scope, status FROM idem_lookup('k', NULL);
SELECT scope, status FROM idem_lookup('k', 'tenant 1');
SELECT count(*) FROM idem_lookup('k', '');
SELECT idem_abandon('k', :token), idem_release('k', :token);
SELECT status, attempt, token FROM idem_reserve('k') \gset
SELECT :attempt AS attempt;
SELECT idem_complete('k', '"one"', :token);
SELECT status, result FROM idem_reserve('k');
SELECT status, result FROM idem_reserve('k', scope => '');
SET idem_tool.scope = 'tenant 2';
SELECT status, result, token FROM idem_reserve('k') \gset
SELECT :'status' AS status;
SELECT idem_fail('k', '"two"', :token);
SELECT status, result FROM idem_reserve('k');
SELECT status, result FROM idem_reserve('k', scope => 'tenant 1');
SELECT error_of($$SELECT idem_complete('new')$$);
-- for the transaction, as behind a pooler
BEGIN;
SET LOCAL idem_tool.scope = 'tenant 1';
SELECT status, result FROM idem_reserve('k');
COMMIT;
SELECT status, result FROM idem_reserve('k');
RESET idem_tool.scope;
SELECT scope, key, status FROM idempotency_keys ORDER BY scope, key;
-- a function's own
CREATE FUNCTION with_scope() RETURNS text
	LANGUAGE sql SET idem_tool.scope = 'tenant 1'
AS $$ SELECT result::text FROM idem_reserve('k') $$;
SELECT with_scope();
DROP FUNCTION with_scope();

--
-- Who may
--
-- left over from a run that was interrupted
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_idem_user;
RESET client_min_messages;
CREATE ROLE regress_idem_user;
SET ROLE regress_idem_user;
SET idem_tool.unknown_ttl = '1h';
SET idem_tool.reservation_ttl = '1h';
SET idem_tool.result_ttl = '1h';
SET idem_tool.takeover = '1h';
SET idem_tool.scope = 'x';
SET idem_tool.owner = 'x';
SET idem_tool.max_result_size = '1kB';
SET idem_tool.durable = off;
SET idem_tool.session_tokens = on;
RESET ROLE;
RESET ALL;
DROP ROLE regress_idem_user;

-- by database
\c -
ALTER DATABASE :"DBNAME" SET idem_tool.scope = 'of the database';
ALTER DATABASE :"DBNAME" SET idem_tool.unknown_ttl = '5d';
\c -
SELECT scope FROM idem_reserve('d'), idem_lookup('d');
SHOW idem_tool.unknown_ttl;
ALTER DATABASE :"DBNAME" RESET idem_tool.scope;
ALTER DATABASE :"DBNAME" RESET idem_tool.unknown_ttl;
\c -

TRUNCATE idempotency_keys;
