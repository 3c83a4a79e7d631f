--
-- idem_reserve: each row of its table in the order of judgement.
--
\pset format unaligned
\pset null '(null)'
SET statement_timeout = '20s';
-- an answer without what differs from run to run
\set answer 'status, result, token IS NOT NULL AS token, attempt, maybe_ran, created_at IS NOT NULL AS created_at, expires_at IS NOT NULL AS expires_at, retry_after IS NOT NULL AS retry_after'

--
-- Nothing there: reserved
--
SELECT :answer FROM idem_reserve('new');
SELECT scope, key, status, attempt, maybe_ran, token > 0 AS token,
	   fingerprint,
	   owner = current_user AS owner, holder,
	   created_at = reserved_at AS first,
	   completed_at, expires_at - reserved_at AS lease, result
FROM idempotency_keys;

-- by the clock, not by the transaction's start
BEGIN;
SELECT pg_sleep(0.01);
SELECT created_at > now() AS now, created_at <= clock_timestamp() AS server
FROM idem_reserve('clock');
COMMIT;

-- token, times and attempt are those of the row
SELECT token, attempt, created_at, expires_at FROM idem_reserve('same') \gset
SELECT token = :token AS token, attempt = :attempt AS attempt,
	   created_at = :'created_at' AS created_at,
	   expires_at = :'expires_at' AS expires_at
FROM idempotency_keys WHERE key = 'same';

-- also when the lease is over before the answer is out
SELECT status, expires_at - created_at AS lease, retry_after
FROM idem_reserve('instant', '1 microsecond');

--
-- In progress: the lease is somebody's
--
SELECT version_of('new') AS version_before,
	   tokens_taken() AS tokens_before \gset
SELECT :answer FROM idem_reserve('new');
SELECT :answer
FROM idem_reserve('new', '5 seconds', '{"a": 1}', '0', '1 hour', 'h');
SELECT :answer FROM idem_reserve('new', '1 day');
-- not one byte of the row has changed, and no token was used up
SELECT version_of('new') = :'version_before' AS unchanged,
	   tokens_taken() = :tokens_before AS no_token;
SELECT r.expires_at = k.expires_at AS expires_at,
	   r.created_at = k.created_at AS created_at
FROM idempotency_keys AS k, idem_reserve('new') AS r WHERE k.key = 'new';

-- waits as long as it may, and no longer
SELECT clock_timestamp() AS start \gset
SELECT :answer FROM idem_reserve('new', wait => '150 milliseconds');
SELECT clock_timestamp() - :'start' >= interval '150 milliseconds' AS waited,
	   clock_timestamp() - :'start' < interval '30 seconds' AS bounded;
SELECT version_of('new') = :'version_before' AS unchanged;

-- the lease may end while it waits
SELECT status FROM idem_reserve('short', '300 milliseconds');
SELECT :answer FROM idem_reserve('short', wait => '1 hour');

-- a lock_timeout ends it as it ends other waits
SET lock_timeout = '100ms';
SELECT error_of($$SELECT idem_reserve('new', wait => '1 hour')$$);
SELECT status FROM idem_reserve('new', wait => '10 milliseconds');
RESET lock_timeout;

-- as does a statement_timeout
SET statement_timeout = '100ms';
SELECT * FROM idem_reserve('new', wait => '1 hour');
SET statement_timeout = '20s';
SELECT version_of('new') = :'version_before' AS unchanged;

--
-- Our own: in progress at once, however long one would wait, whatever the
-- request or the holder
--
BEGIN;
SELECT :answer FROM idem_reserve('own', request => '1', holder => 'h');
SELECT version_of('own') AS version_before \gset
SELECT :answer FROM idem_reserve('own', wait => '1 hour');
SELECT :answer FROM idem_reserve('own', request => '2', wait => '1 hour');
SELECT :answer FROM idem_reserve('own', holder => 'h', wait => '1 hour');
SELECT version_of('own') = :'version_before' AS unchanged;
SAVEPOINT s;
SELECT :answer FROM idem_reserve('own', wait => '1 hour');
-- in a savepoint that is kept
SELECT status FROM idem_reserve('inner');
RELEASE s;
SELECT :answer FROM idem_reserve('inner', holder => 'h', wait => '1 hour');
-- and in one that is not
SAVEPOINT s;
SELECT status FROM idem_reserve('undone');
ROLLBACK TO s;
SELECT :answer FROM idem_reserve('undone');
-- a lease that ends does not make it somebody else's
SELECT let_pass('own');
SELECT :answer FROM idem_reserve('own', wait => '1 hour');
-- nor does an extension of it
SELECT idem_extend('own') IS NOT NULL AS extended;
SELECT status FROM idem_reserve('own', wait => '1 hour');
-- given up, it may be taken over, also by ourselves
SAVEPOINT s;
SELECT idem_abandon('own');
SELECT :answer FROM idem_reserve('own');
SELECT status FROM idem_reserve('own', wait => '1 hour');
ROLLBACK TO s;
-- once settled, it is replayed
SELECT idem_complete('own', '"r"');
SELECT :answer FROM idem_reserve('own');
SELECT idem_release('inner');
SELECT :answer FROM idem_reserve('inner');
ROLLBACK;
-- nothing of it is left
SELECT :answer FROM idem_reserve('own');

-- a lease that is merely extended here cannot end while one waits for it
SELECT token FROM idem_reserve('extended') \gset
BEGIN;
SELECT idem_extend('extended', '1 hour', :token) IS NOT NULL AS extended;
SELECT :answer FROM idem_reserve('extended', wait => '1 hour');
COMMIT;

--
-- Released: the next attempt
--
SELECT token AS first_token, created_at
FROM idem_reserve('released', '1 hour', '{"a": 1}', holder => 'h1') \gset
SELECT idem_release('released', :first_token);
SELECT status, attempt, maybe_ran, holder,
	   expires_at > now() + interval '23 hours' AS remembered
FROM idem_lookup('released');
SELECT :answer FROM idem_reserve('released', '2 hours', holder => 'h2');
SELECT status, attempt, maybe_ran, token > :first_token AS higher_token,
	   fingerprint = idem_fingerprint('{"a": 1}') AS same_request, holder,
	   created_at = :'created_at' AS same_created_at,
	   reserved_at > created_at AS reserved_again,
	   completed_at, expires_at - reserved_at AS lease, result
FROM idempotency_keys WHERE key = 'released';
-- the holder that is not named again is gone
SELECT idem_release('released', token_of('released'));
SELECT attempt FROM idem_reserve('released');
SELECT holder FROM idem_lookup('released');
-- a request that the first call left out may be given later
SELECT make_state('late', 'released') IS NOT NULL AS made;
SELECT :answer FROM idem_reserve('late', request => '1');
SELECT error_of($$SELECT idem_reserve('late', request => '2')$$);

--
-- Lapsed or expired: taken over, by the clock (see takeover)
--
SELECT token FROM idem_reserve('lapsed', '1 hour', '{"a": 1}') \gset
SELECT let_pass('lapsed');
SELECT :answer FROM idem_reserve('lapsed');
SELECT status, attempt, maybe_ran, token > :token AS higher_token,
	   fingerprint = idem_fingerprint('{"a": 1}') AS same_request,
	   reserved_at > created_at AS later, expires_at - reserved_at AS lease
FROM idempotency_keys WHERE key = 'lapsed';
SELECT make_state('expired', 'expired') IS NOT NULL AS made;
SELECT :answer FROM idem_reserve('expired');

--
-- Done and failed: replayed, without the token
--
SELECT make_state('done', 'done') IS NOT NULL AS made;
SELECT version_of('done') AS version_before,
	   tokens_taken() AS tokens_before \gset
SELECT :answer FROM idem_reserve('done');
SELECT :answer
FROM idem_reserve('done', '5 seconds', '{"a": 1}', '1 hour', '0', 'h');
SELECT r.created_at = k.created_at AS created_at,
	   r.expires_at = k.expires_at AS expires_at
FROM idempotency_keys AS k, idem_reserve('done') AS r WHERE k.key = 'done';
SELECT make_state('failed', 'failed') IS NOT NULL AS made;
SELECT version_of('failed') AS failed_before \gset
SELECT :answer FROM idem_reserve('failed');
SELECT :answer
FROM idem_reserve('failed', '5 seconds', '{"a": 1}', '1 hour', '0', 'h');
SELECT version_of('done') = :'version_before' AS done_unchanged,
	   version_of('failed') = :'failed_before' AS failed_unchanged,
	   tokens_taken() = :tokens_before + 1 AS no_token;

-- what a later attempt came to
SELECT make_state('second', 'released') IS NOT NULL AS made;
SELECT token FROM idem_reserve('second') \gset
SELECT idem_complete('second', '2', :token);
SELECT :answer FROM idem_reserve('second');

--
-- One row, whatever is there, and always an answer
--
SELECT state, make_state('always ' || state, state) IS NOT NULL AS made
FROM unnest(ARRAY['absent', 'in_progress', 'lapsed', 'expired', 'released',
				  'done', 'failed']) AS state;
SELECT state, r.*
FROM unnest(ARRAY['absent', 'in_progress', 'lapsed', 'expired', 'released',
				  'done', 'failed']) WITH ORDINALITY AS s (state, nr),
	 LATERAL (SELECT :answer FROM idem_reserve('always ' || state)) AS r
ORDER BY nr;

-- tokens rise with each reservation of a key
CREATE TEMP TABLE won (nr int GENERATED ALWAYS AS IDENTITY, token bigint);
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
SELECT idem_release('rising', max(token)) FROM won;
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
SELECT let_pass('rising');
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
SELECT idem_complete('rising', '1', max(token)) FROM won;
SELECT let_pass('rising');
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
DELETE FROM idempotency_keys WHERE key = 'rising';
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
-- also when the sequence has fallen back behind the row
UPDATE idempotency_keys SET token = token + 1000000 WHERE key = 'rising';
INSERT INTO won (token) SELECT token_of('rising');
SELECT idem_release('rising', token_of('rising'));
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
-- or behind a row past its memory
SELECT idem_fail('rising', '1', token_of('rising'));
SELECT let_pass('rising');
INSERT INTO won (token) SELECT token FROM idem_reserve('rising');
SELECT count(*), bool_and(rises) AS rising
FROM (SELECT token > lag(token, 1, 0) OVER (ORDER BY nr) AS rises FROM won)
	 AS w;

TRUNCATE idempotency_keys;
DROP TABLE won;
