--
-- retry_after: seconds left of the lease, rounded up, at least 1; only with
-- in_progress.  And which columns of an answer are NULL when.
--
\pset format unaligned
\pset null '(null)'

-- rounded up: between what was left before the call and after it
CREATE FUNCTION retry_after_ok(key text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	before timestamptz := clock_timestamp();
	answer record;
	after timestamptz;
	most numeric;
	least numeric;
BEGIN
	SELECT * INTO STRICT answer FROM idem_reserve(key);
	after := clock_timestamp();
	most := greatest(1, ceil(extract(epoch FROM answer.expires_at - before)));
	least := greatest(1, ceil(extract(epoch FROM answer.expires_at - after)));
	RETURN CASE WHEN answer.status <> 'in_progress' THEN answer.status
		WHEN answer.retry_after BETWEEN least AND most THEN 'ok'
		ELSE format('%s, not %s to %s', answer.retry_after, least, most) END;
END $$;

SET idem_tool.max_reservation_ttl = -1;
SELECT ttl, status, retry_after, retry_after_ok('k ' || ttl)
FROM unnest(ARRAY['1 minute', '59.9 seconds', '60.1 seconds', '15 minutes',
				  '3600 seconds', '1 day',
				  '30 days']) AS ttl,
				  idem_reserve('k ' || ttl, ttl::interval);
SELECT bool_and(retry_after_ok('k ' || ttl) = 'ok')
FROM unnest(ARRAY['1 minute', '59.9 seconds', '60.1 seconds', '15 minutes',
				  '3600 seconds', '1 day',
				  '30 days']) AS ttl;
-- less than a second is one
SELECT status FROM idem_reserve('soon', '10 minutes');
DO $$
BEGIN
	FOR i IN 1..50 LOOP
		UPDATE idempotency_keys SET expires_at
		= clock_timestamp() + i * interval '20 milliseconds'
		WHERE key = 'soon';
		COMMIT;
		IF retry_after_ok('soon') NOT IN ('ok', 'reserved') THEN
			RAISE NOTICE '% %', i, retry_after_ok('soon');
		END IF;
	END LOOP;
END $$;
-- as large as an integer may be
SELECT status FROM idem_reserve('far', '1000 years');
SELECT status, retry_after FROM idem_reserve('far');
UPDATE idempotency_keys SET expires_at = 'infinity' WHERE key = 'far';
SELECT status, retry_after, expires_at FROM idem_reserve('far');

--
-- Each answer, and what is NULL in it
--
\set nulls 'r.status, r.result IS NULL AS result, r.token IS NULL AS token, r.attempt IS NULL AS attempt, r.maybe_ran IS NULL AS maybe_ran, r.created_at IS NULL AS created_at, r.expires_at IS NULL AS expires_at, r.retry_after IS NULL AS retry_after'
TRUNCATE idempotency_keys;
CREATE TEMP TABLE states (nr int GENERATED ALWAYS AS IDENTITY, state text);
INSERT INTO states (state)
VALUES ('absent'), ('in_progress'), ('lapsed'), ('expired'), ('released'),
	('done'), ('failed');
SELECT count(make_state(state, state)) FROM states;
SELECT state, :nulls FROM states, idem_reserve(state) AS r ORDER BY nr;
TRUNCATE idempotency_keys;
SELECT count(make_state(state, state)) FROM states;
SELECT state, :nulls FROM states, idem_reserve(state, takeover => '0') AS r
WHERE state IN ('lapsed', 'expired') ORDER BY nr;
-- done and failed with SQL NULL
SELECT idem_complete('in_progress', token => token_of('in_progress')),
	   idem_fail('expired', token => token_of('expired'));
SELECT key, :nulls FROM unnest(ARRAY['in_progress', 'expired']) AS key,
	   idem_reserve(key) AS r;
-- one's own
BEGIN;
SELECT :nulls FROM idem_reserve('own') AS r;
SELECT :nulls FROM idem_reserve('own') AS r;
SELECT let_pass('own');
SELECT :nulls FROM idem_reserve('own') AS r;
COMMIT;

TRUNCATE idempotency_keys;
DROP TABLE states;
DROP FUNCTION retry_after_ok;
RESET idem_tool.max_reservation_ttl;
