--
-- Taking over: lapsed leases, expired keys, holders that have died.
--
SET timezone = 'UTC';
\pset format unaligned
\pset null '(null)'
SET statement_timeout = '20s';
\set answer 'status, result, token IS NOT NULL AS token, attempt, maybe_ran, created_at IS NOT NULL AS created_at, expires_at IS NOT NULL AS expires_at, retry_after IS NOT NULL AS retry_after'

-- let the key's first reservation have been some time ago
CREATE FUNCTION make_older(key text, age interval) RETURNS void
LANGUAGE sql AS $$
	UPDATE idempotency_keys AS k
	SET created_at = created_at - age, reserved_at = reserved_at - age
	WHERE k.key = make_older.key
$$;

--
-- The window: 12 hours from the first reservation, by default
--
SELECT make_state('k', 'lapsed') AS token \gset
SELECT version_of('k') AS version_before \gset
SELECT :answer FROM idem_reserve('k');
SELECT version_of('k') <> :'version_before' AS written;
-- it counts from the first reservation, not from this attempt's
SELECT let_pass('k'), make_older('k', '11 hours 59 minutes');
SELECT :answer FROM idem_reserve('k', '10 seconds');
SELECT let_pass('k'), make_older('k', '2 minutes');
UPDATE idempotency_keys SET reserved_at = clock_timestamp();
-- past it: expired, and nothing happens
SELECT version_of('k') AS version_before,
	   tokens_taken() AS tokens_before \gset
SELECT :answer FROM idem_reserve('k');
SELECT :answer FROM idem_reserve('k', '1 hour', wait => '1 hour');
SELECT version_of('k') = :'version_before' AS unchanged,
	   tokens_taken() = :tokens_before AS no_token;
-- it expires when its memory does
SELECT r.expires_at = k.expires_at + interval '720 hours' AS memory,
	   r.created_at = k.created_at AS created_at
FROM idempotency_keys AS k, idem_reserve('k') AS r;
-- unless the caller allows more
SELECT :answer FROM idem_reserve('k', takeover => '1 day');
SELECT let_pass('k');
-- or less
SELECT status FROM idem_reserve('k', takeover => '12 hours');
SELECT status FROM idem_reserve('k', takeover => '1 second');
SELECT status FROM idem_reserve('k', takeover => '0');
-- an expired key is the same
SELECT make_state('x', 'expired') IS NOT NULL AS made;
SELECT make_older('x', '12 hours');
SELECT :answer FROM idem_reserve('x');
SELECT r.expires_at = k.expires_at AS memory
FROM idempotency_keys AS k, idem_reserve('x') AS r WHERE k.key = 'x';
SELECT :answer FROM idem_reserve('x', takeover => '13 hours');

-- the lease ends no later than the window
SELECT make_state('clipped', 'lapsed') IS NOT NULL AS made;
SELECT make_older('clipped', '11 hours');
SELECT status, expires_at = created_at + interval '12 hours' AS clipped
FROM idem_reserve('clipped', '1 day');
SELECT expires_at = created_at + interval '12 hours' AS stored
FROM idempotency_keys WHERE key = 'clipped';
SELECT let_pass('clipped');
SELECT status, expires_at - created_at < interval '12 hours' AS short
FROM idem_reserve('clipped', '1 minute');
SELECT let_pass('clipped');
SELECT status, expires_at = created_at + interval '11 hours 30 minutes'
	   AS clipped
FROM idem_reserve('clipped', '1 day', takeover => '11 hours 30 minutes');
-- months are of 30 days
SET idem_tool.max_reservation_ttl = -1;
SELECT let_pass('clipped');
SELECT status, expires_at = created_at + interval '720 hours' AS clipped
FROM idem_reserve('clipped', '1 year', takeover => '1 month');
-- that of a first reservation, or of a released one, does not
SELECT status, expires_at - created_at AS lease
FROM idem_reserve('long', '48 hours', takeover => '1 hour');
SELECT idem_release('long', token_of('long'));
SELECT make_older('long', '13 hours');
SELECT status, attempt, maybe_ran, expires_at > now() + interval '47 hours'
	   AS long FROM idem_reserve('long', '48 hours');

-- the setting: never, always, some time
SELECT make_state('s', 'lapsed') IS NOT NULL AS made;
SET idem_tool.takeover = 0;
SELECT status, attempt, maybe_ran FROM idem_reserve('s');
SELECT status FROM idem_reserve('s', takeover => '1 hour');
SELECT let_pass('s'), make_older('s', '50 years');
SET idem_tool.takeover = -1;
SELECT status, attempt, maybe_ran FROM idem_reserve('s', '1 year');
SELECT expires_at - reserved_at = interval '360 days' AS not_clipped
FROM idempotency_keys WHERE key = 's';
SELECT let_pass('s');
SELECT status FROM idem_reserve('s', takeover => '49 years');
SET idem_tool.takeover = '20000d';
SELECT status, expires_at = created_at + interval '480000 hours' AS clipped
FROM idem_reserve('s', '100 years');
RESET idem_tool.takeover;

RESET idem_tool.max_reservation_ttl;

-- what is expired can still be settled
SELECT make_state('known', 'expired') AS token \gset
SELECT status FROM idem_reserve('known', takeover => '0');
SELECT idem_complete('known', '"it had"', :token);
SELECT status, result, attempt, maybe_ran
FROM idem_reserve('known', takeover => '0');

-- a lapsed lease and its mark are one state: no function tells them apart
CREATE FUNCTION tell(key text, call text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	outcome text;
BEGIN
	EXECUTE format(call, key, token_of(key)) INTO outcome;
	outcome := concat_ws(' ', outcome,
						 (SELECT concat_ws(' ', status, attempt, maybe_ran,
										   result)
										FROM idem_lookup(key)));
	RAISE EXCEPTION USING ERRCODE = 'UNDO1';
EXCEPTION
	WHEN SQLSTATE 'UNDO1' THEN RETURN outcome;
	WHEN OTHERS THEN RETURN SQLSTATE;
END $$;
SELECT make_state('lapsed', 'lapsed') IS NOT NULL AS lapsed,
	   make_state('expired', 'expired') IS NOT NULL AS expired;
UPDATE idempotency_keys SET fingerprint = idem_fingerprint('1'), holder = 'h'
WHERE key IN ('lapsed', 'expired');
SELECT call, tell('lapsed', call) AS lapsed, tell('expired', call) AS expired
FROM unnest(ARRAY[
	'SELECT status FROM idem_reserve(%L)',
	'SELECT status FROM idem_reserve(%L, holder => ''h'')',
	'SELECT status FROM idem_reserve(%L, takeover => ''0'')',
	'SELECT status FROM idem_reserve(%L, takeover => ''0'', holder => ''h'')',
	'SELECT status FROM idem_reserve(%L, request => ''2'')',
	'SELECT status FROM idem_lookup(%L)',
	'SELECT idem_complete(%L, ''1'', %s)', 'SELECT idem_complete(%L, ''1'')',
	'SELECT idem_complete(%L, ''1'', -1)',
	'SELECT idem_fail(%L, ''1'', %s)', 'SELECT idem_fail(%L, ''1'')',
	'SELECT idem_fail(%L, ''1'', -1)',
	'SELECT idem_release(%L, %s)', 'SELECT idem_release(%L)',
	'SELECT idem_release(%L, -1)',
	'SELECT idem_abandon(%L, %s)', 'SELECT idem_abandon(%L)',
	'SELECT idem_abandon(%L, -1)',
	'SELECT idem_extend(%L, token => %s) > now()', 'SELECT idem_extend(%L)',
	'SELECT idem_extend(%L, token => -1)'
]) AS call;
DROP FUNCTION tell;

-- nobody takes over in a transaction that only reads, but one is told
BEGIN READ ONLY;
SELECT error_of($$SELECT * FROM idem_reserve('lapsed')$$),
	   error_of($$SELECT * FROM idem_reserve('expired')$$);
SELECT :answer FROM idem_reserve('lapsed', takeover => '0');
ROLLBACK;

--
-- Holders: the same one again says that the earlier attempt is dead
--
TRUNCATE idempotency_keys;
SELECT token
FROM idem_reserve('h', '1 hour', '{"a": 1}', holder => 'worker 1') \gset
SELECT version_of('h') AS version_before \gset
-- others, and who names none, are told to wait
SELECT status FROM idem_reserve('h', holder => 'worker 2');
SELECT status FROM idem_reserve('h', holder => 'worker 1 ');
SELECT status FROM idem_reserve('h', holder => 'Worker 1');
SELECT status FROM idem_reserve('h', holder => 'worker');
SELECT status FROM idem_reserve('h');
SELECT version_of('h') = :'version_before' AS unchanged;
-- another request is refused to him as well
SELECT outcome_of(
	$$SELECT idem_reserve('h', request => '{"a": 2}', holder => 'worker 1')$$);
-- outside the window he is told that it is too late
SELECT :answer FROM idem_reserve('h', takeover => '0', holder => 'worker 1');
SELECT version_of('h') = :'version_before' AS unchanged;
-- at once, with a new token: the lost one is dead
SELECT :answer
FROM idem_reserve('h', '5 minutes', holder => 'worker 1', wait => '1 hour');
SELECT holder, token > :token AS higher_token,
	   expires_at - reserved_at AS lease,
	   fingerprint = idem_fingerprint('{"a": 1}') AS same_request
FROM idempotency_keys;
SELECT outcome_of(format($$SELECT idem_complete('h', '1', %s)$$, :token));
-- after a take-over it is the new one's
SELECT let_pass('h');
SELECT status, attempt FROM idem_reserve('h', holder => 'worker 2');
SELECT status FROM idem_reserve('h', holder => 'worker 1');
SELECT status, attempt FROM idem_reserve('h', holder => 'worker 2');
SELECT let_pass('h');
SELECT status, attempt FROM idem_reserve('h');
SELECT status FROM idem_reserve('h', holder => 'worker 2');
SELECT holder FROM idem_lookup('h');
-- a reservation without a holder is nobody's to claim
SELECT status FROM idem_reserve('nobody');
SELECT status FROM idem_reserve('nobody', holder => 'worker 1');
-- settled is settled, for holders too
SELECT token FROM idem_reserve('settled', holder => 'worker 1') \gset
SELECT idem_complete('settled', '1', :token);
SELECT :answer FROM idem_reserve('settled', holder => 'worker 1');
-- the lease of a claim is clipped as any take-over's
SELECT status FROM idem_reserve('claim', holder => 'worker 1');
SELECT status, expires_at = created_at + interval '1 hour' AS clipped
FROM idem_reserve('claim', '1 day', takeover => '1 hour',
				  holder => 'worker 1');
-- in another transaction only: see reserve for one's own
BEGIN;
SELECT status FROM idem_reserve('own', holder => 'worker 1');
SELECT status FROM idem_reserve('own', holder => 'worker 1');
COMMIT;
SELECT status, attempt, maybe_ran
FROM idem_reserve('own', holder => 'worker 1');

--
-- Waiting until it may be taken over
--
SELECT status FROM idem_reserve('w', '200 milliseconds');
SELECT status, attempt, maybe_ran FROM idem_reserve('w', wait => '1 hour');
-- or until it is known that it must not be
SELECT status FROM idem_reserve('w2', '200 milliseconds');
SELECT status, attempt, maybe_ran
FROM idem_reserve('w2', wait => '1 hour', takeover => '0');

TRUNCATE idempotency_keys;
DROP FUNCTION make_older;
