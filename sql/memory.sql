--
-- End of memory: past it a key is absent, for every function.
--
SET timezone = 'UTC';
\pset format unaligned
\pset null '(null)'
\set answer 'status, result, token IS NOT NULL AS token, attempt, maybe_ran, created_at IS NOT NULL AS created_at, expires_at IS NOT NULL AS expires_at, retry_after IS NOT NULL AS retry_after'

--
-- When it comes: from what happened last
--
SELECT make_state(state, state) IS NOT NULL AS made
FROM unnest(ARRAY['in_progress', 'lapsed', 'expired', 'released', 'done',
				  'failed']) AS state;
SELECT make_state(state || ' ttl', 'in_progress') IS NOT NULL AS made
FROM unnest(ARRAY['done', 'failed']) AS state;
SELECT idem_complete('done ttl', ttl => '90 days',
					 token => token_of('done ttl')),
	   idem_fail('failed ttl', ttl => '1 second',
				 token => token_of('failed ttl'));
-- done and failed: completion + their ttl
SELECT key, expires_at - completed_at AS memory
FROM idempotency_keys WHERE completed_at IS NOT NULL ORDER BY key;
-- released: release + idem_tool.result_ttl
SELECT expires_at BETWEEN now() + interval '24 hours -1 minute'
	   AND now() + interval '24 hours' AS released
FROM idem_lookup('released');
-- lapsed or expired: the lease's end + idem_tool.unknown_ttl
SELECT l.expires_at - k.expires_at AS memory
FROM idempotency_keys AS k, idem_lookup('lapsed') AS l WHERE k.key = 'lapsed';
SELECT expires_at BETWEEN now() + interval '720 hours -1 minute'
	   AND now() + interval '720 hours' AS expired
FROM idem_lookup('expired');
-- in progress: not before the lease ends
SELECT l.expires_at = k.expires_at AS lease
FROM idempotency_keys AS k, idem_lookup('in_progress') AS l
WHERE k.key = 'in_progress';

-- by the settings
SET idem_tool.result_ttl = '2d';
SET idem_tool.unknown_ttl = '3d';
SELECT make_state('set ' || state, state) IS NOT NULL AS made
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done', 'failed'])
	 AS state;
SELECT key,
	   round(extract(epoch FROM expires_at - clock_timestamp()) / 86400, 1)
	   AS days
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done', 'failed'])
	 AS state,
	 idem_lookup('set ' || state);
-- what is stored stays; a lapsed lease goes by the setting of today
SET idem_tool.result_ttl = '1s';
SET idem_tool.unknown_ttl = '4d';
SELECT key,
	   round(extract(epoch FROM expires_at - clock_timestamp()) / 86400, 1)
	   AS days
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done', 'failed'])
	 AS state,
	 idem_lookup('set ' || state);
-- -1: for ever
SET idem_tool.result_ttl = -1;
SET idem_tool.unknown_ttl = -1;
SELECT make_state('ever ' || state, state) IS NOT NULL AS made
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done', 'failed'])
	 AS state;
SELECT l.key, l.status, l.expires_at AS lookup, r.status, r.expires_at
FROM unnest(ARRAY['lapsed', 'expired', 'released', 'done', 'failed'])
	 AS state,
	 idem_lookup('ever ' || state) AS l,
	 idem_reserve(key, takeover => '0') AS r
WHERE state <> 'released';
SELECT status, expires_at FROM idem_lookup('ever released');
UPDATE idempotency_keys SET expires_at = '2000-01-01'
WHERE key = 'ever lapsed';
SELECT status, expires_at FROM idem_lookup('ever lapsed');
-- a ttl of one's own is stronger
SELECT idem_complete('ever lapsed', ttl => '1 hour',
					 token => token_of('ever lapsed'));
SELECT expires_at - completed_at AS memory FROM idem_lookup('ever lapsed');
RESET idem_tool.result_ttl;
RESET idem_tool.unknown_ttl;

--
-- Past it
--
TRUNCATE idempotency_keys;
CREATE TEMP TABLE forgotten (nr int GENERATED ALWAYS AS IDENTITY, state text,
							 token bigint);
INSERT INTO forgotten (state) VALUES ('lapsed'), ('expired'), ('released'),
	('done'), ('failed');
UPDATE forgotten SET token = make_state(state, state);
UPDATE idempotency_keys SET owner = 'of nobody', holder = 'h', attempt = 7,
	maybe_ran = true,
	fingerprint = idem_fingerprint('"old"'),
	created_at = created_at - interval '100 days',
	reserved_at = reserved_at - interval '90 days',
	completed_at = completed_at - interval '90 days',
	expires_at = CASE key WHEN 'lapsed'
	THEN now() - interval '720 hours 1 second'
				 ELSE now() - interval '1 second' END;
CREATE TEMP TABLE versions AS SELECT key, version_of(key)
FROM idempotency_keys;
-- absent for every function and everybody; nothing shows of what was
SELECT count(*) FROM forgotten, idem_lookup(state);
SELECT count(*), error
FROM forgotten,
	 unnest(ARRAY['idem_complete', 'idem_fail', 'idem_extend']) AS function,
	 error_of(format('SELECT %s(%L, token => %s)', function, state, token))
	 AS error
WHERE state = 'done' GROUP BY error;
SELECT state, function,
	   outcome_of(format('SELECT idem_%s(%L, token => %s)', function, state,
						 token)) AS token,
	   outcome_of(format('SELECT idem_%s(%L)', function, state)) AS none,
	   outcome_of(format('SELECT idem_%s(%L, token => -1)', function, state))
	   AS wrong
FROM forgotten,
	 unnest(ARRAY['complete', 'fail', 'release', 'abandon', 'extend'])
	 WITH ORDINALITY AS f (function, function_nr)
ORDER BY nr, function_nr;
BEGIN READ ONLY;
SELECT count(*) FROM forgotten, idem_lookup(state);
SELECT outcome_of(format('SELECT idem_reserve(%L)', state)) FROM forgotten
ORDER BY nr;
ROLLBACK;
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;
-- reserved as if it were the first time, whatever the request or the holder:
-- nobody takes over or waits, but tokens go on rising
SELECT state, a.*
FROM forgotten,
	 LATERAL (SELECT :answer
			  FROM idem_reserve(state, takeover => '0', request => '"new"'))
				   AS a
ORDER BY nr;
SELECT state, k.status, attempt, maybe_ran, k.token > f.token AS higher_token,
	   fingerprint = idem_fingerprint('"new"') AS new_request,
	   owner = current_user AS new_owner,
	   holder, created_at = reserved_at AS first,
	   created_at > now() - interval '1 hour' AS new,
	   completed_at, expires_at - reserved_at AS lease, result
FROM forgotten AS f JOIN idempotency_keys AS k ON key = state ORDER BY nr;
SELECT count(*) FROM idempotency_keys;
-- without a request the old one is forgotten all the same
UPDATE idempotency_keys SET expires_at = now() - interval '31 days';
SELECT count(*) FROM forgotten, idem_reserve(state, holder => 'h2')
WHERE status = 'reserved';
SELECT DISTINCT attempt, maybe_ran, fingerprint, holder FROM idempotency_keys;

-- up to it, it is remembered
SELECT idem_complete(state, '1', token_of(state), '1 hour') FROM forgotten;
UPDATE idempotency_keys SET expires_at
	= clock_timestamp() + interval '1 minute';
SELECT status, count(*) FROM forgotten, idem_reserve(state) GROUP BY status;

-- the shortest ones
SELECT status, token FROM idem_reserve('short') \gset
SELECT idem_complete('short', '1', :token, '1 microsecond');
SELECT :answer FROM idem_reserve('short');
SELECT idem_fail('short', '1', token_of('short'), '1 microsecond');
SELECT count(*) FROM idem_lookup('short');

-- a row that the running statement has deleted is absent
SELECT status FROM idem_reserve('deleted');
DELETE FROM idempotency_keys WHERE key = 'deleted'
RETURNING (SELECT count(*) FROM idem_lookup('deleted')) AS found,
	outcome_of($$SELECT idem_release('deleted', 1)$$) AS released;

TRUNCATE idempotency_keys;
DROP TABLE forgotten, versions;
