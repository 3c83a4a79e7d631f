--
-- idem_complete, idem_fail, idem_release, idem_abandon, idem_extend and
-- idem_lookup: each of them in each state of a key.
--
\pset format unaligned
\pset null '(null)'

--
-- What each answers: with the key's current token, without a token, with a
-- wrong one.  The keys are made by one transaction and settled by another.
--
CREATE TEMP TABLE calls AS
SELECT s.nr AS state_nr, state, f.nr AS function_nr, function,
	   t.nr AS token_nr, given,
	   concat_ws(' ', state, function, given) AS key,
	   format(CASE function
			  WHEN 'complete' THEN 'SELECT idem_complete(%L, %L, token => $)'
			  WHEN 'fail' THEN 'SELECT idem_fail(%L, %L, token => $)'
			  WHEN 'release' THEN 'SELECT idem_release(%L, token => $)'
			  WHEN 'abandon' THEN 'SELECT idem_abandon(%L, token => $)'
			  WHEN 'extend'
			  THEN 'SELECT idem_extend(%L, token => $) > clock_timestamp()'
			  END,
			  concat_ws(' ', state, function, given), '"r"') AS call
FROM unnest(ARRAY['absent', 'in_progress', 'lapsed', 'expired', 'released',
				  'done',
				  'failed']) WITH ORDINALITY AS s (state, nr),
	 unnest(ARRAY['complete', 'fail', 'release', 'abandon', 'extend'])
	 WITH ORDINALITY AS f (function, nr),
	 unnest(ARRAY['current', 'none', 'wrong']) WITH ORDINALITY
	 AS t (given, nr);
ALTER TABLE calls ADD token bigint, ADD before text, ADD answer text;
UPDATE calls SET token = make_state(key, state);
UPDATE calls SET before = version_of(key);
UPDATE calls SET answer = outcome_of(replace(call, '$', CASE given
	WHEN 'current' THEN token WHEN 'none' THEN 0 WHEN 'wrong'
	THEN token + 1000000 END::text));
SELECT state, function,
	   max(answer) FILTER (WHERE given = 'current') AS "current token",
	   max(answer) FILTER (WHERE given = 'none') AS "no token",
	   max(answer) FILTER (WHERE given = 'wrong') AS "wrong token"
FROM calls GROUP BY state_nr, state, function_nr, function
ORDER BY state_nr, function_nr;

-- a row is written where the answer is true, and nowhere else; but there is
-- nothing to write when what is abandoned has lapsed already
SELECT state, function, given, answer, version_of(key) = before AS unchanged
FROM calls
WHERE (answer = 'true') = (version_of(key) IS NOT DISTINCT FROM before)
ORDER BY state_nr;
SELECT count(*) FROM idempotency_keys AS k
WHERE NOT EXISTS (SELECT FROM calls WHERE calls.key = k.key);

-- what was written
SELECT state, function, k.status, attempt, maybe_ran,
	   k.token = calls.token AS token,
	   created_at = reserved_at AS created_at,
	   completed_at > reserved_at AS completed_at, result
FROM calls JOIN idempotency_keys AS k USING (key)
WHERE answer = 'true' ORDER BY state_nr, function_nr;
DROP TABLE calls;
TRUNCATE idempotency_keys;

--
-- idem_complete and idem_fail
--
SELECT token FROM idem_reserve('done', holder => 'h', request => '1') \gset
SELECT idem_complete('done', '{"a": [1, 2.0]}', :token);
SELECT version_of('done') AS version_before \gset
-- equal as jsonb
SELECT idem_complete('done', '{"a": [1.0, 2]}', :token);
SELECT idem_complete('done', '{"a": [1, 2]}', :token, '10 days');
-- another
SELECT error_of(format($$SELECT idem_complete('done', '{"a": [2, 1]}', %s)$$,
					   :token));
SELECT outcome_of(format('SELECT idem_complete(%L, %L, %s)', 'done', result,
						 :token)) AS code, result
FROM unnest(ARRAY[NULL, 'null', '{}', '{"a": [1, 2], "b": null}',
				  '"{\"a\": [1, 2]}"', '1']) AS result;
SELECT error_of(format($$SELECT idem_fail('done', '{"a": [1, 2.0]}', %s)$$,
					   :token));
-- the first stays
SELECT version_of('done') = :'version_before' AS unchanged;
SELECT status, result, holder, expires_at - completed_at AS memory
FROM idem_lookup('done');
SELECT status, result FROM idem_reserve('done');

SELECT token FROM idem_reserve('failed') \gset
SELECT idem_fail('failed', '{"code": 1}', :token, '1 hour');
SELECT version_of('failed') AS version_before \gset
SELECT idem_fail('failed', '{"code": 1.0}', :token);
SELECT error_of(format($$SELECT idem_fail('failed', '{"code": 2}', %s)$$,
					   :token));
SELECT error_of(format($$SELECT idem_complete('failed', '{"code": 1}', %s)$$,
					   :token));
SELECT version_of('failed') = :'version_before' AS unchanged;
SELECT status, result, expires_at - completed_at AS memory
FROM idem_lookup('failed');
SELECT status, result FROM idem_reserve('failed');

-- twice in one transaction, without a token
BEGIN;
SELECT status FROM idem_reserve('twice');
SELECT idem_complete('twice', '1');
SELECT idem_complete('twice', '1.0');
SELECT outcome_of($$SELECT idem_complete('twice', '2')$$);
SELECT outcome_of($$SELECT idem_fail('twice', '1')$$);
SELECT outcome_of($$SELECT idem_extend('twice')$$);
SELECT idem_release('twice'), idem_abandon('twice');
COMMIT;
SELECT status, result FROM idem_reserve('twice');

-- settling clears maybe_ran
SELECT make_state('cleared', 'lapsed') AS token \gset
SELECT maybe_ran, token FROM idem_reserve('cleared') \gset
SELECT :'maybe_ran' AS maybe_ran;
SELECT idem_complete('cleared', '1', :token);
SELECT status, attempt, maybe_ran FROM idem_reserve('cleared');
SELECT make_state('cleared too', 'lapsed') AS token \gset
SELECT maybe_ran, token FROM idem_reserve('cleared too') \gset
SELECT idem_fail('cleared too', '1', :token);
SELECT status, attempt, maybe_ran FROM idem_reserve('cleared too');

--
-- idem_release and idem_abandon: made for a finally block
--
SELECT token FROM idem_reserve('k') \gset
SELECT idem_release('k', :token);
SELECT idem_release('k', :token), idem_abandon('k', :token);
SELECT token FROM idem_reserve('k') \gset new_
-- a late one frees nobody's key
SELECT idem_release('k', :token), idem_abandon('k', :token);
SELECT status, retry_after IS NOT NULL AS lease FROM idem_reserve('k');
SELECT idem_abandon('k', :new_token);
SELECT status, attempt, maybe_ran,
	   expires_at > now() + interval '719 hours' AS remembered
FROM idem_lookup('k');
-- again: it is what it is; memory still ends when it did
SELECT version_of('k') AS version_before \gset
SELECT idem_abandon('k', :new_token);
SELECT version_of('k') = :'version_before' AS unchanged;
-- it turns out not to have run after all
SELECT idem_release('k', :new_token);
SELECT status, attempt, maybe_ran FROM idem_reserve('k');

-- a release does not make an earlier attempt not to have run
SELECT make_state('maybe', 'lapsed') AS token \gset
SELECT maybe_ran, token FROM idem_reserve('maybe') \gset
SELECT idem_release('maybe', :token);
SELECT status, maybe_ran FROM idem_lookup('maybe');
SELECT status, attempt, maybe_ran FROM idem_reserve('maybe');

--
-- idem_extend
--
SELECT token, expires_at
FROM idem_reserve('lease', '1 hour', '1', holder => 'h') \gset
-- never shortens
SELECT idem_extend('lease', '1 minute', :token) = :'expires_at' AS same;
SELECT idem_extend('lease', '2 hours', :token) AS extended \gset
SELECT :'extended'::timestamptz
	   > :'expires_at'::timestamptz + interval '59 minutes' AS longer,
	   expires_at = :'extended' AS stored
FROM idempotency_keys WHERE key = 'lease';
-- by the setting
SET idem_tool.reservation_ttl = '3h';
SELECT idem_extend('lease', token => :token) > :'extended' AS longer;
RESET idem_tool.reservation_ttl;
-- nothing else changes
SELECT status, attempt, maybe_ran, token = :token AS token, holder,
	   fingerprint = idem_fingerprint('1') AS fingerprint,
	   created_at = reserved_at AS first, completed_at
FROM idempotency_keys WHERE key = 'lease';
-- a late one revives the lease: from now on, whatever memory is left
SELECT let_pass('lease');
SELECT status FROM idem_lookup('lease');
SELECT idem_extend('lease', '1 minute', :token) BETWEEN clock_timestamp()
	AND clock_timestamp() + interval '1 minute' AS revived;
SELECT status FROM idem_reserve('lease');
SELECT idem_abandon('lease', :token);
SELECT idem_extend('lease', '1 minute', :token) BETWEEN clock_timestamp()
	AND clock_timestamp() + interval '1 minute' AS revived;
SELECT status, attempt, maybe_ran FROM idem_reserve('lease');

--
-- idem_lookup: the public columns, or no row
--
TRUNCATE idempotency_keys;
SELECT * FROM idem_lookup('k') \gdesc
SELECT state, make_state(state, state) IS NOT NULL AS made
FROM unnest(ARRAY['in_progress', 'lapsed', 'expired', 'released', 'done',
				  'failed']) AS state;
CREATE TEMP TABLE versions AS SELECT key, version_of(key)
FROM idempotency_keys;
SELECT l.scope, l.key, l.status, l.attempt, l.maybe_ran,
	   l.owner = current_user AS owner, l.holder,
	   l.created_at = k.created_at AS created_at,
	   l.reserved_at = k.reserved_at AS reserved_at,
	   l.completed_at = k.completed_at AS completed_at, l.result
FROM unnest(ARRAY['absent', 'in_progress', 'lapsed', 'expired', 'released',
				  'done', 'failed'])
	 WITH ORDINALITY AS s (state, nr), idem_lookup(state) AS l
	 JOIN idempotency_keys AS k USING (scope, key)
ORDER BY nr;
-- in progress: the end of the lease; else the end of memory
SELECT k.key, l.expires_at = k.expires_at AS stored,
	   l.expires_at = k.expires_at + interval '720 hours' AS by_unknown_ttl,
	   l.expires_at BETWEEN now() + interval '23 hours'
	   AND now() + interval '24 hours' AS by_result_ttl,
	   l.expires_at BETWEEN now() + interval '719 hours'
	   AND now() + interval '720 hours' AS in_30_days
FROM idempotency_keys AS k, LATERAL idem_lookup(k.key) AS l ORDER BY k.key;
-- nothing was touched
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;
DROP TABLE versions;
-- our own changes show
BEGIN;
SELECT idem_complete('in_progress', '1', token_of('in_progress'));
SELECT status, result FROM idem_lookup('in_progress');
ROLLBACK;
SELECT status, result FROM idem_lookup('in_progress');

TRUNCATE idempotency_keys;
