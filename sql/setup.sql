--
-- What the other tests have in common; it stays in the database.
--

-- a test that hangs has failed
ALTER DATABASE :"DBNAME" SET statement_timeout = '2min';
-- where the server has a worker, it would touch the keys in between
ALTER DATABASE :"DBNAME" SET idem_tool.worker = off;

-- Run a statement and say how it fails, with points in time masked
CREATE FUNCTION error_of(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN regexp_replace(
		concat_ws(E'\n', SQLSTATE || ': ' || message,
				  'DETAIL:  ' || nullif(detail, ''),
				  'HINT:  ' || nullif(hint, '')),
		'\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-][\d:]+| \w+)|\d+(?= seconds)', '<time>',
		'g');
END $$;

-- The same in one word: its SQLSTATE, or the one value that it returns
CREATE FUNCTION outcome_of(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	outcome text;
BEGIN
	EXECUTE statement INTO outcome;
	RETURN outcome;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;

-- Which version of its row a key has: changes with every write
CREATE FUNCTION version_of(key text, scope text DEFAULT '') RETURNS text
LANGUAGE sql AS $$
	SELECT format('%s %s %s', ctid, xmin, xmax)
	FROM idempotency_keys AS k
	WHERE k.key = version_of.key AND k.scope = version_of.scope
$$;

-- The key's current fencing token
CREATE FUNCTION token_of(key text, scope text DEFAULT '') RETURNS bigint
LANGUAGE sql AS $$
	SELECT token
	FROM idempotency_keys AS k
	WHERE k.key = token_of.key AND k.scope = token_of.scope
$$;

-- How many tokens were taken so far
CREATE FUNCTION tokens_taken() RETURNS bigint
LANGUAGE sql AS $$
	SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END
	FROM idempotency_keys_token_seq
$$;

-- Let a key's lease or memory have ended a second ago
CREATE FUNCTION let_pass(key text, scope text DEFAULT '') RETURNS void
LANGUAGE sql AS $$
	UPDATE idempotency_keys AS k
	SET expires_at = clock_timestamp() - interval '1 second'
	WHERE k.key = let_pass.key AND k.scope = let_pass.scope
$$;

-- Put a key into a state, in scope ''; returns its token
CREATE FUNCTION make_state(key text, state text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	token bigint := 1;
BEGIN
	IF state = 'absent' THEN
		RETURN token;
	END IF;
	SELECT r.token INTO STRICT token
	FROM idem_reserve(make_state.key, scope => '') AS r;
	CASE state
		WHEN 'in_progress' THEN NULL;
		WHEN 'lapsed' THEN PERFORM let_pass(key);
		WHEN 'expired' THEN PERFORM idem_abandon(key, scope => '');
		WHEN 'released' THEN PERFORM idem_release(key, scope => '');
		WHEN 'done' THEN PERFORM idem_complete(key, '"r"', scope => '');
		WHEN 'failed' THEN PERFORM idem_fail(key, '"r"', scope => '');
	END CASE;
	RETURN token;
END $$;
