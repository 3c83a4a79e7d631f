--
-- READ ONLY transactions, and what a replay leaves behind: nothing.
--
\pset format unaligned
\pset null '(null)'

CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('absent'), ('in_progress'), ('lapsed'), ('expired'), ('released'),
	('done'), ('failed');
SELECT count(make_state(state, state)) FROM states;
CREATE TEMP TABLE versions AS SELECT key, version_of(key)
FROM idempotency_keys;
CREATE TEMP TABLE tokens AS SELECT key, token FROM idempotency_keys;

--
-- READ ONLY: what needs no writing is answered, the rest is 25006
--
BEGIN READ ONLY;
SELECT state, outcome_of(format('SELECT status FROM idem_reserve(%L)', state))
	   AS reserve,
	   outcome_of(
	   	format('SELECT status FROM idem_reserve(%L, takeover => %L)', state, 0)) AS takeover_0,
	   outcome_of(format('SELECT status FROM idem_lookup(%L)', state))
	   AS lookup
FROM states ORDER BY nr;
SELECT status, result, token, attempt, retry_after FROM idem_reserve('done');
SELECT status, result, token, attempt, retry_after
FROM idem_reserve('failed');
SELECT status, result, token, attempt, retry_after > 0 AS retry_after
FROM idem_reserve('in_progress');
SELECT status FROM idem_reserve('in_progress', wait => '20 milliseconds');
SELECT (idem_reserve('done')).status, (idem_reserve('done')).result;
-- settling: what is settled already, or not there, needs no writing either
SELECT state, function,
	   outcome_of(format('SELECT idem_%s(%L%s, token => %s)', function, state,
		CASE WHEN function IN ('complete', 'fail') THEN ', ''"r"'''
		ELSE '' END, coalesce(token, 1)))
FROM states LEFT JOIN tokens ON key = state,
	 unnest(ARRAY['complete', 'fail', 'release', 'abandon', 'extend'])
	 WITH ORDINALITY AS f (function, function_nr)
ORDER BY nr, function_nr;
-- who may not settle is told so first
SELECT outcome_of($$SELECT idem_complete('in_progress')$$),
	   outcome_of($$SELECT idem_complete('in_progress', token => -1)$$);
COMMIT;
SET default_transaction_read_only = on;
SELECT status FROM idem_reserve('done');
SELECT status FROM idem_reserve('new');
RESET default_transaction_read_only;
-- a reservation made before the transaction turned read only
BEGIN;
SELECT status FROM idem_reserve('mine');
SET TRANSACTION READ ONLY;
SELECT status FROM idem_reserve('mine');
SELECT outcome_of($$SELECT idem_complete('mine')$$);
ROLLBACK;
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;
SELECT count(*) FROM idempotency_keys;

--
-- No transaction id, no lock, no row lock, no token
--
CREATE VIEW our_locks AS
SELECT locktype, mode
FROM pg_locks
WHERE pid = pg_backend_pid()
AND (relation IN (SELECT oid FROM pg_class
				  WHERE relname LIKE 'idempotency\_keys%')
	 OR locktype IN ('advisory', 'tuple', 'transactionid'));
SELECT tokens_taken() AS tokens_before \gset
BEGIN;
SELECT status FROM idem_reserve('done');
SELECT status
FROM idem_reserve('failed', wait => '1 second', holder => 'h',
				  request => '1');
SELECT status FROM idem_reserve('in_progress');
SELECT status FROM idem_reserve('in_progress', wait => '20 milliseconds');
SELECT status FROM idem_reserve('lapsed', takeover => '0');
SELECT status FROM idem_lookup('done');
SELECT count(*) FROM idem_lookup('absent');
SELECT idem_complete('done', '"r"', token) FROM tokens WHERE key = 'done';
SELECT idem_fail('failed', '"r"', token) FROM tokens WHERE key = 'failed';
SELECT idem_release('done', token), idem_abandon('done', token) FROM tokens
WHERE key = 'done';
SELECT outcome_of($$SELECT idem_complete('done', '"other"')$$);
SELECT outcome_of($$SELECT idem_extend('done')$$);
SELECT pg_current_xact_id_if_assigned() AS xid;
SELECT count(*) FROM our_locks;
COMMIT;
-- a write takes an id and keeps its locks: that is what one would see
BEGIN;
SELECT status FROM idem_reserve('new');
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS xid;
SELECT count(*) > 0 AS locks, count(*) FILTER (WHERE locktype = 'advisory')
	   AS advisory FROM our_locks;
ROLLBACK;
-- many of them
BEGIN;
SELECT count(*)
FROM generate_series(1, 10000) AS i,
	 idem_reserve('done', ttl => i * interval '1 second')
WHERE status = 'done' AND result = '"r"';
SELECT pg_current_xact_id_if_assigned() AS xid;
SELECT count(*) FROM our_locks;
COMMIT;
-- at the other isolation levels
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT status FROM idem_reserve('done');
SELECT count(*) FROM idem_lookup('done');
SELECT pg_current_xact_id_if_assigned() AS xid;
SELECT count(*) FROM our_locks WHERE locktype <> 'relation'
	   OR mode <> 'SIReadLock';
SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'
	   AND pid = pg_backend_pid()
AND relation IN ('idempotency_keys'::regclass,
				 'idempotency_keys_pkey'::regclass);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT status FROM idem_reserve('done');
SELECT count(*) FROM our_locks;
COMMIT;
SELECT count(*) FROM versions AS v
WHERE version_of(key) IS DISTINCT FROM v.version_of;
SELECT tokens_taken() - :tokens_before AS tokens;

-- a duplicate of a running reservation uses up no token either
SELECT count(*)
FROM generate_series(1, 1000) AS i,
	 idem_reserve('in_progress', ttl => i * interval '1 second')
WHERE status = 'in_progress';
SELECT tokens_taken() - :tokens_before AS tokens;

TRUNCATE idempotency_keys;
DROP VIEW our_locks;
DROP TABLE states, versions, tokens;
