-- What the peers use, as a user would make it: no scope, the database's
-- collation, and room for the result on the row's own page.
--
-- Twice: "public" without anything for expiry, and "expiry" with the index
-- that a DELETE of old keys wants.  The same scripts run against both.

CREATE TABLE by_hand (
	key text PRIMARY KEY,
	status text NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	expires_at timestamptz NOT NULL,
	completed_at timestamptz,
	result jsonb
) WITH (fillfactor = 50);

CREATE SCHEMA expiry;
CREATE TABLE expiry.by_hand (LIKE by_hand INCLUDING ALL) WITH (fillfactor = 50);
CREATE INDEX ON expiry.by_hand (expires_at);

-- the same in functions, which find the table by the search_path

CREATE FUNCTION hand_reserve(new_key text, OUT won boolean, OUT outcome jsonb)
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO by_hand (key, status, expires_at)
		VALUES (new_key, 'in_progress', now() + interval '5 min')
		ON CONFLICT DO NOTHING;
	won := FOUND;
	IF NOT won THEN
		SELECT result INTO outcome FROM by_hand
			WHERE key = new_key AND status = 'done';
	END IF;
END $$;

CREATE FUNCTION hand_complete(new_key text, outcome jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE by_hand SET status = 'done', completed_at = now(),
			expires_at = now() + interval '1 day', result = outcome
		WHERE key = new_key AND status = 'in_progress';
	RETURN FOUND;
END $$;

-- a tool that runs inside the database, with idem_tool and without

CREATE FUNCTION tool_idem(new_key text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	answer idem_answer;
	completed boolean;
BEGIN
	answer := idem_reserve(new_key);
	IF answer.status <> 'reserved' THEN
		RETURN answer.result;
	END IF;
	completed := idem_complete(new_key, '{"charge": "ch_123", "ok": true}');
	RETURN '{"charge": "ch_123", "ok": true}';
END $$;

CREATE FUNCTION tool_hand(new_key text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	outcome jsonb;
BEGIN
	INSERT INTO by_hand (key, status, expires_at)
		VALUES (new_key, 'in_progress', now() + interval '5 min')
		ON CONFLICT DO NOTHING;
	IF NOT FOUND THEN
		SELECT result INTO outcome FROM by_hand
			WHERE key = new_key AND status = 'done';
		RETURN outcome;
	END IF;
	UPDATE by_hand SET status = 'done', completed_at = now(),
			expires_at = now() + interval '1 day',
			result = '{"charge": "ch_123", "ok": true}'
		WHERE key = new_key AND status = 'in_progress';
	RETURN '{"charge": "ch_123", "ok": true}';
END $$;

-- the business of the workload in one transaction

CREATE TABLE orders (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	key text NOT NULL,
	amount integer NOT NULL
);

-- Settled keys.  In mixed order, as keys of the real world arrive in their
-- index; 7919 is prime.

CREATE FUNCTION fill(first bigint, last bigint, memory interval = '1 day')
RETURNS void
LANGUAGE sql AS $$
	INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
			created_at, reserved_at, completed_at, expires_at, result)
		SELECT 'settled:' || first + i * 7919 % (last - first + 1), 'done', 1,
			false, nextval('idempotency_keys_token_seq'), current_user,
			now(), now(), now(), now() + memory,
			'{"charge": "ch_123", "ok": true}'
		FROM generate_series(0, last - first) i;
$$;

-- the same keys

CREATE FUNCTION fill_peers() RETURNS void
LANGUAGE sql AS $$
	INSERT INTO by_hand
		SELECT key, status, created_at, expires_at, completed_at, result
		FROM idempotency_keys;
	INSERT INTO expiry.by_hand SELECT * FROM by_hand;
$$;
