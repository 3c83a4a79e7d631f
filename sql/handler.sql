--
-- The handler of a tool as one writes it, and what agents do to it: they call
-- again, over another connection, as another role of their tenant, after an
-- error, after a failure, after a time-out.
--
\pset format unaligned
\pset null '(null)'

-- left over from a run that was interrupted
SET client_min_messages = error;
DROP SCHEMA IF EXISTS handler CASCADE;
DROP ROLE IF EXISTS regress_idem_one, regress_idem_two, regress_idem_tenant;
RESET client_min_messages;
TRUNCATE idempotency_keys;

CREATE ROLE regress_idem_tenant;
GRANT regress_idem_tenant TO CURRENT_USER;
CREATE ROLE regress_idem_one IN ROLE regress_idem_tenant;
CREATE ROLE regress_idem_two IN ROLE regress_idem_tenant;
SELECT idem_grant('regress_idem_one'), idem_grant('regress_idem_two');

CREATE SCHEMA handler;
GRANT USAGE ON SCHEMA handler TO PUBLIC;
CREATE TABLE handler.effects (nr int GENERATED ALWAYS AS IDENTITY, key text,
							  who text);
GRANT INSERT, SELECT ON handler.effects TO PUBLIC;

-- Reserve, act, complete in the caller's transaction
CREATE FUNCTION handler.create_ticket(key text, request jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	answer idem_answer;
	done jsonb;
BEGIN
	SELECT * INTO answer FROM idem_reserve(key, request => request);
	IF answer.status = 'reserved' THEN
		INSERT INTO handler.effects (key, who) VALUES (key, current_user)
		RETURNING jsonb_build_object('ticket', nr) INTO done;
		IF request ->> 'title' IS NULL THEN
			RAISE EXCEPTION 'a ticket needs a title';
		END IF;
		PERFORM idem_complete(key, done);
		RETURN done;
	END IF;
	IF answer.status = 'done' THEN
		RETURN answer.result;
	END IF;
	RAISE EXCEPTION 'not now: %', answer.status;
END;
$$;

--
-- Again, over another connection, as another role: one effect, one answer
--
SET idem_tool.owner = 'regress_idem_tenant';
SET ROLE regress_idem_one;
SELECT handler.create_ticket('ticket', '{"title": "t"}') AS first \gset
SELECT handler.create_ticket('ticket', '{"title": "t"}') = :'first' AS same;
\c -
SET idem_tool.owner = 'regress_idem_tenant';
SET ROLE regress_idem_one;
SELECT handler.create_ticket('ticket', '{"title": "t"}') = :'first' AS same;
SET ROLE regress_idem_two;
SELECT handler.create_ticket('ticket', '{"title": "t"}') = :'first' AS same;
RESET ROLE;
SELECT key, who FROM handler.effects;

-- fresh and duplicate can be told apart
SELECT status, attempt, maybe_ran, created_at FROM idem_reserve('fresh') \gset
SELECT :'status' AS status, :attempt AS attempt, :'maybe_ran' AS maybe_ran;
SELECT status, attempt, created_at = :'created_at' AS same_time
FROM idem_reserve('fresh');
SELECT idem_complete('fresh', '1', token_of('fresh'));
SELECT status, attempt, created_at = :'created_at' AS same_time
FROM idem_reserve('fresh');

--
-- After an error: nothing is recorded, and the retry is a first attempt
--
SELECT outcome_of($$SELECT handler.create_ticket('error', '{}')$$)
FROM generate_series(1, 3);
BEGIN;
SELECT handler.create_ticket('error', '{}');
ROLLBACK;
SELECT count(*) FROM idem_lookup('error');
SELECT count(*) FROM handler.effects WHERE key = 'error';
SELECT handler.create_ticket('error', '{"title": "t"}') IS NOT NULL AS created;
SELECT status, attempt, maybe_ran FROM idem_lookup('error');
SELECT count(*) FROM handler.effects WHERE key = 'error';

-- an error that passes, outside: given back, however often, and never done
SELECT r.attempt, r.status, r.maybe_ran, idem_release('busy', r.token)
FROM generate_series(1, 3) AS n,
	 idem_reserve('busy', n * interval '1 hour') AS r;
SELECT status, result FROM idem_lookup('busy');

--
-- After a failure for good: the agent that tries on and on hears when it was,
-- and the very same error
--
SELECT idem_fail('declined', '{"n": 1.50, "b": [], "a": null}', token)
FROM idem_reserve('declined');
SELECT version_of('declined') AS version_before \gset
SELECT r.status, r.attempt, r.created_at = k.created_at AS same_time,
	   r.result::text = k.result::text AS same_text, r.result
FROM generate_series(1, 3) AS n,
	 idem_reserve('declined', n * interval '1 hour') AS r, idempotency_keys AS k
WHERE k.key = 'declined';
SELECT version_of('declined') = :'version_before' AS unchanged;

--
-- After a time-out: money has moved, the caller is gone
--
SELECT idem_call_key('transfer', '{"amount": 5}', 'turn 7') AS transfer \gset
SELECT status FROM idem_reserve(:'transfer', request => '{"amount": 5}');
INSERT INTO handler.effects (key) VALUES (:'transfer');
SELECT status FROM idem_reserve(:'transfer', request => '{"amount": 5}');
SELECT let_pass(:'transfer');
SELECT status, attempt, maybe_ran, token
FROM idem_reserve(:'transfer', request => '{"amount": 5}') \gset
SELECT :'status' AS status, :attempt AS attempt, :'maybe_ran' AS maybe_ran;
-- it has been: recorded instead of done again
SELECT idem_complete(:'transfer', '{"moved": 5}', :token)
FROM handler.effects WHERE key = :'transfer';
SELECT status, attempt, maybe_ran, result FROM idem_reserve(:'transfer');
-- the human who sends the message again begins another turn
SELECT status, attempt, maybe_ran
FROM idem_reserve(idem_call_key('transfer', '{"amount": 5}', 'turn 8'));

SET client_min_messages = warning;
DROP SCHEMA handler CASCADE;
RESET client_min_messages;
DROP OWNED BY regress_idem_one, regress_idem_two;
DROP ROLE regress_idem_one, regress_idem_two, regress_idem_tenant;
TRUNCATE idempotency_keys;
