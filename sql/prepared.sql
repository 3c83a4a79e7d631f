--
-- A rival's uncommitted change, here of a prepared transaction: neither
-- judged nor disclosed, and nothing is written next to it.
--
\pset format unaligned
\pset null '(null)'
SELECT current_setting('max_prepared_transactions')::int = 0 AS skip \gset
\if :skip
\quit
\endif
SET statement_timeout = '20s';
\set answer 'status, result, token IS NOT NULL AS token, attempt, maybe_ran, created_at IS NOT NULL AS created_at, expires_at IS NOT NULL AS expires_at, retry_after IS NOT NULL AS retry_after'

CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('in_progress'), ('lapsed'), ('expired'), ('released'), ('done'),
	('failed');
SELECT count(make_state(state, state)) FROM states;
UPDATE idempotency_keys SET fingerprint = idem_fingerprint('1');
CREATE TEMP TABLE tokens AS SELECT key, token FROM idempotency_keys;
-- what is past its memory is no state of its own
SELECT make_state('forgotten', 'done') IS NOT NULL AS made;
SELECT let_pass('forgotten');

-- what all calls answer to each key; none of them waits for long
CREATE FUNCTION answers(k text, OUT reserve text, OUT request_2 text,
						OUT wait text, OUT lookup text)
LANGUAGE plpgsql AS $$
BEGIN
	SELECT concat_ws(' ', status, result, 'token ' || token,
					 'attempt ' || attempt, 'maybe_ran ' || maybe_ran,
					 CASE WHEN created_at IS NOT NULL THEN 'created' END,
					 CASE WHEN expires_at IS NOT NULL THEN 'expires' END,
					 CASE WHEN retry_after IS NOT NULL THEN 'retry' END)
	INTO reserve FROM idem_reserve(k);
	request_2 := outcome_of(
		format('SELECT status FROM idem_reserve(%L, request => %L)', k, 2));
	wait := outcome_of(
		format('SELECT status FROM idem_reserve(%L, wait => %L)', k, '20ms'));
	lookup := outcome_of(
		format('SELECT concat_ws('' '', status, result) FROM idem_lookup(%L)', k));
END $$;

-- reserved
BEGIN;
SELECT status FROM idem_reserve('new', request => '1');
PREPARE TRANSACTION 'regress_idem_1';
SELECT * FROM answers('new');
BEGIN READ ONLY;
SELECT :answer FROM idem_reserve('new');
COMMIT;
-- at once
SELECT clock_timestamp() AS start \gset
SELECT count(*)
FROM generate_series(1, 20) AS i,
	 idem_reserve('new', i * interval '1 second');
SELECT clock_timestamp() - :'start' < interval '5 seconds' AS at_once;
-- there is no reservation to settle yet; who is willing to wait does
SET lock_timeout = '100ms';
SELECT outcome_of($$SELECT idem_complete('new', token => 1)$$),
	   outcome_of($$SELECT idem_release('new', 1)$$);
SELECT outcome_of($$SELECT idem_reserve('new', wait => '1 hour')$$);
RESET lock_timeout;
-- no token was used up
SELECT tokens_taken() AS tokens_before \gset
SELECT status FROM idem_reserve('new');
SELECT tokens_taken() - :tokens_before AS tokens;
COMMIT PREPARED 'regress_idem_1';
SELECT * FROM answers('new');

-- rolled back
BEGIN;
SELECT status FROM idem_reserve('new 2');
PREPARE TRANSACTION 'regress_idem_1';
SELECT status FROM idem_reserve('new 2');
ROLLBACK PREPARED 'regress_idem_1';
SELECT status, attempt FROM idem_reserve('new 2');

-- changed: what was committed is answered if it is settled, else there is a
-- rival, with what is known of the row
BEGIN;
UPDATE idempotency_keys SET status = 'done', attempt = 9, maybe_ran = true,
	result = '"secret"', completed_at = now();
PREPARE TRANSACTION 'regress_idem_1';
SELECT state, a.* FROM states, answers(state) AS a ORDER BY nr;
SELECT * FROM answers('forgotten');
BEGIN READ ONLY;
SELECT state,
	   outcome_of(
	   	format('SELECT concat_ws('' '', status, attempt) FROM idem_reserve(%L)', state))
FROM states ORDER BY nr;
COMMIT;
-- settling has to wait where the answer depends on it
SET lock_timeout = '10ms';
SELECT state, function,
	   outcome_of(format('SELECT idem_%s(%L%s, token => %s)', function, state,
		CASE WHEN function IN ('complete', 'fail') THEN ', ''"r"'''
		ELSE '' END, token))
FROM states
	 JOIN tokens ON key = state,
	 unnest(ARRAY['complete', 'release', 'extend']) AS function
WHERE state IN ('in_progress', 'lapsed', 'released')
ORDER BY nr, function COLLATE "C";
RESET lock_timeout;
ROLLBACK PREPARED 'regress_idem_1';

-- deleted
BEGIN;
DELETE FROM idempotency_keys;
PREPARE TRANSACTION 'regress_idem_1';
SELECT state, a.* FROM states, answers(state) AS a ORDER BY nr;
SELECT * FROM answers('forgotten');
BEGIN READ ONLY;
SELECT state, outcome_of(format('SELECT status FROM idem_reserve(%L)', state))
FROM states ORDER BY nr;
COMMIT;
-- a lock_timeout is none of the business of who does not wait
SET lock_timeout = '1ms';
SELECT state, status FROM states, idem_reserve(state) ORDER BY nr;
SELECT status FROM idem_reserve('forgotten');
RESET lock_timeout;
ROLLBACK PREPARED 'regress_idem_1';

-- merely locked
BEGIN;
SELECT count(*) FROM (SELECT FROM idempotency_keys FOR UPDATE) AS locked;
PREPARE TRANSACTION 'regress_idem_1';
SELECT state, a.* FROM states, answers(state) AS a ORDER BY nr;
SELECT * FROM answers('forgotten');
ROLLBACK PREPARED 'regress_idem_1';
-- and as foreign keys lock
BEGIN;
SELECT count(*) FROM (SELECT FROM idempotency_keys FOR KEY SHARE) AS locked;
PREPARE TRANSACTION 'regress_idem_1';
SELECT state, a.* FROM states, answers(state) AS a
WHERE state IN ('in_progress', 'done', 'failed') ORDER BY nr;
ROLLBACK PREPARED 'regress_idem_1';

-- extended: the fence holds, whatever the lease says
BEGIN;
SELECT idem_extend('lapsed', '1 hour', token_of('lapsed'))
	   IS NOT NULL AS extended;
PREPARE TRANSACTION 'regress_idem_1';
SELECT * FROM answers('lapsed');
SELECT status
FROM idem_reserve('lapsed', holder => 'h', takeover => '1 year');
ROLLBACK PREPARED 'regress_idem_1';
SELECT status FROM idem_reserve('lapsed');

-- completed in the transaction that is prepared
BEGIN;
SELECT status FROM idem_reserve('both');
SELECT idem_complete('both', '1');
PREPARE TRANSACTION 'regress_idem_1';
SELECT * FROM answers('both');
COMMIT PREPARED 'regress_idem_1';
SELECT * FROM answers('both');
-- a prepared reservation is somebody else's, even to the session that made it
BEGIN;
SELECT status FROM idem_reserve('gone');
PREPARE TRANSACTION 'regress_idem_1';
COMMIT PREPARED 'regress_idem_1';
SELECT outcome_of($$SELECT idem_complete('gone')$$);
SELECT idem_complete('gone', '1', token_of('gone'));

TRUNCATE idempotency_keys;
DROP TABLE states, tokens;
DROP FUNCTION answers;
