--
-- Errors: SQLSTATE, message, detail and hint.
--
\pset format unaligned
\pset tuples_only on

CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('absent'), ('in_progress'), ('lapsed'), ('expired'), ('released'),
	('done'), ('failed');
SELECT count(make_state(state, state)) FROM states;
UPDATE idempotency_keys SET fingerprint = idem_fingerprint('{"amount": 1}'),
	attempt = 3, result = result || '["secret"]';
CREATE TEMP TABLE versions AS SELECT key, version_of(key)
FROM idempotency_keys;

-- IK001: another request, in every state; the result stays secret
SELECT error_of(
	format($$SELECT * FROM idem_reserve(%L, request => '{"amount": 2}')$$, state))
FROM states WHERE state <> 'absent' ORDER BY nr;

-- IK002: not the current token
SELECT error_of(format($$SELECT idem_complete(%L, '"r"', token => -1)$$,
					   state))
FROM states WHERE state <> 'absent' ORDER BY nr;
SELECT function, count(DISTINCT error), min(split_part(error, E'\n', 1))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_extend']) AS function,
	 states,
	 error_of(format('SELECT %s(%L, token => -1)', function, state)) AS error
WHERE state <> 'absent' GROUP BY function ORDER BY function COLLATE "C";

-- one that the key never had: of another key, or of none
SELECT error_of('SELECT idem_complete(''done'', token => 9223372036854775807)');
SELECT error_of(format('SELECT idem_complete(''mine'', token => %s)',
					   token - 1))
FROM idem_reserve('mine');
SELECT idem_release('mine', token) FROM idempotency_keys WHERE key = 'mine';

-- IK003: no token
SELECT error_of(format('SELECT idem_complete(%L)', state))
FROM states ORDER BY nr;
SELECT function, count(DISTINCT error), min(split_part(error, E'\n', 1))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_release',
				  'idem_abandon', 'idem_extend']) AS function, states,
	 error_of(format('SELECT %s(%L)', function, state)) AS error
WHERE error <> 'no error' GROUP BY function ORDER BY function COLLATE "C";
-- IK003: nothing to act on
SELECT error_of(format('SELECT idem_complete(%L, token => %s)', state,
					   coalesce(token_of(state), 1)))
FROM states WHERE state IN ('absent', 'released') ORDER BY nr;
SELECT function, count(DISTINCT error), min(split_part(error, E'\n', 1))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_extend']) AS function,
	 states,
	 error_of(format('SELECT %s(%L, token => %s)', function, state,
					 coalesce(token_of(state), 1)))
	 AS error
WHERE state IN ('absent', 'released') GROUP BY function ORDER BY function COLLATE "C";

-- IK004: settled otherwise
SELECT error_of(format('SELECT idem_complete(%L, %L, %s)', state, '"other"',
					   token_of(state)))
FROM states WHERE state IN ('done', 'failed') ORDER BY nr;
SELECT function, count(DISTINCT error), min(split_part(error, E'\n', 1))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_extend']) AS function,
	 states,
	 error_of(format('SELECT %s(%L, token => %s)', function, state,
					 token_of(state))) AS error
WHERE state IN ('done', 'failed') GROUP BY function ORDER BY function COLLATE "C";

-- 54000: more than may be recorded
SET idem_tool.max_result_size = 100;
SELECT error_of(
	format($$SELECT %s('in_progress', to_jsonb(repeat('x', 100)), %s)$$,
					   function, token_of('in_progress')))
FROM unnest(ARRAY['idem_complete', 'idem_fail']) AS function;
RESET idem_tool.max_result_size;

-- 22004 and 22023: see arguments
SELECT error_of($$SELECT idem_complete('in_progress', token => NULL)$$);
SELECT error_of($$SELECT idem_reserve('', wait => '1 day')$$);

-- 25006: what would have to write, cannot
BEGIN READ ONLY;
SELECT error_of($$SELECT idem_reserve('new')$$);
SELECT error_of(format('SELECT %s(%L, token => %s)', function, 'in_progress',
					   token_of('in_progress')))
FROM unnest(ARRAY['idem_complete', 'idem_fail', 'idem_release',
				  'idem_abandon', 'idem_extend']) AS function;
ROLLBACK;

-- an error leaves the row as it was
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;
DROP TABLE versions;

--
-- Expiry: while in progress the end of the lease, later the end of memory;
-- in the session's time zone
--
CREATE FUNCTION pg_temp.detail_of(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN detail;
END $$;

SET timezone = 'Asia/Kolkata';
UPDATE idempotency_keys SET expires_at = '2200-01-01 00:00:00+00'
WHERE key <> 'lapsed';
SELECT pg_temp.detail_of(format('SELECT idem_complete(%L)', state))
FROM states WHERE state NOT IN ('absent', 'lapsed') ORDER BY nr;
SELECT regexp_replace(detail, '.* expires at (.*)\.', '\1')::timestamptz
	= expires_at + interval '720 hours' AS memory
FROM idempotency_keys,
	 LATERAL pg_temp.detail_of(format('SELECT idem_complete(%L)', key))
	 AS detail
WHERE key = 'lapsed';
UPDATE idempotency_keys SET expires_at = 'infinity' WHERE key <> 'lapsed';
SET idem_tool.unknown_ttl = -1;
SELECT pg_temp.detail_of(format('SELECT idem_complete(%L)', state))
FROM states WHERE state <> 'absent' ORDER BY nr;
RESET idem_tool.unknown_ttl;
RESET timezone;

--
-- Key and scope as they are, long or strange
--
SELECT error_of($$SELECT idem_complete('%s "q" \ $1 é', scope => 's"%d')$$);
SELECT length(error_of(format('SELECT idem_complete(%L)', repeat('x', 1024))))
	   > 1024;

--
-- What psql shows
--
SELECT idem_complete('done', '1', -1);
\set VERBOSITY sqlstate
SELECT idem_reserve('done', request => '2');
SELECT idem_complete('done', '1', -1);
SELECT idem_complete('done', '1');
SELECT idem_complete('done', '1', token_of('done'));
SELECT idem_complete('done', '1', NULL);
SELECT idem_reserve('');
\set VERBOSITY default

TRUNCATE idempotency_keys;
DROP TABLE states;
