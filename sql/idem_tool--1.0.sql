/* idem_tool--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idem_tool" to load this file. \quit

-- the table

CREATE SEQUENCE @extschema@.idempotency_keys_token_seq AS bigint CACHE 1;

COMMENT ON SEQUENCE @extschema@.idempotency_keys_token_seq IS
'source of the fencing tokens; must never go back';

CREATE TABLE @extschema@.idempotency_keys (
	scope text COLLATE "C" NOT NULL DEFAULT '',
	key text COLLATE "C" NOT NULL,
	status text NOT NULL
		CONSTRAINT idempotency_keys_status_check
		CHECK (status IN ('in_progress', 'done', 'failed', 'released', 'expired')),
	attempt integer NOT NULL,
	maybe_ran boolean NOT NULL,
	token bigint NOT NULL,
	fingerprint bytea,
	owner name NOT NULL,
	holder text,
	created_at timestamptz NOT NULL,
	reserved_at timestamptz NOT NULL,
	completed_at timestamptz,
	expires_at timestamptz NOT NULL,
	result jsonb,
	PRIMARY KEY (scope, key)
) WITH (fillfactor = 50);

COMMENT ON TABLE @extschema@.idempotency_keys IS
'one row for each idempotency key; written by the idem_ functions';
COMMENT ON COLUMN @extschema@.idempotency_keys.scope IS
'key space, e.g. a tenant or a service';
COMMENT ON COLUMN @extschema@.idempotency_keys.key IS
'names one logical action within its scope';
COMMENT ON COLUMN @extschema@.idempotency_keys.status IS
'in_progress, done, failed, released or expired (a lapsed lease, once marked)';
COMMENT ON COLUMN @extschema@.idempotency_keys.attempt IS
'1 for the first reservation of the key, one more for each later one';
COMMENT ON COLUMN @extschema@.idempotency_keys.maybe_ran IS
'an earlier attempt may have had its effect';
COMMENT ON COLUMN @extschema@.idempotency_keys.token IS
'fencing token of the current attempt; rises with every reservation of the key';
COMMENT ON COLUMN @extschema@.idempotency_keys.fingerprint IS
'SHA-256 of the canonical request, if one was given';
COMMENT ON COLUMN @extschema@.idempotency_keys.owner IS
'role that reserved the key first; its members may act on it';
COMMENT ON COLUMN @extschema@.idempotency_keys.holder IS
'name of the current attempt''s executor, if one was given';
COMMENT ON COLUMN @extschema@.idempotency_keys.created_at IS
'first reservation of the key';
COMMENT ON COLUMN @extschema@.idempotency_keys.reserved_at IS
'start of the current attempt';
COMMENT ON COLUMN @extschema@.idempotency_keys.completed_at IS
'when the key became done or failed';
COMMENT ON COLUMN @extschema@.idempotency_keys.expires_at IS
'in progress: end of the lease; afterwards: end of memory';
COMMENT ON COLUMN @extschema@.idempotency_keys.result IS
'the result (done) or the error (failed)';
COMMENT ON CONSTRAINT idempotency_keys_status_check ON @extschema@.idempotency_keys IS
'the five states of a key';
COMMENT ON CONSTRAINT idempotency_keys_pkey ON @extschema@.idempotency_keys IS
'decides who reserves a key first';
COMMENT ON INDEX @extschema@.idempotency_keys_pkey IS
'the only index of the extension, so that completions stay heap-only updates';

REVOKE ALL ON @extschema@.idempotency_keys FROM PUBLIC;
REVOKE ALL ON SEQUENCE @extschema@.idempotency_keys_token_seq FROM PUBLIC;

-- a user who is granted SELECT sees the rows that he may act on; the owner's
-- name may be that of a role that is gone
ALTER TABLE @extschema@.idempotency_keys ENABLE ROW LEVEL SECURITY;

CREATE POLICY idempotency_keys_members ON @extschema@.idempotency_keys
	FOR SELECT
	USING (EXISTS (
		SELECT FROM pg_catalog.pg_roles AS r
		WHERE r.rolname OPERATOR(pg_catalog.=) idempotency_keys.owner
		AND pg_catalog.pg_has_role(r.oid, 'MEMBER')));

COMMENT ON POLICY idempotency_keys_members ON @extschema@.idempotency_keys IS
'members of a key''s owner see it';

SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_keys', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_keys_token_seq', '');

-- what callers use

CREATE TYPE @extschema@.idem_answer AS (
	status text,
	result jsonb,
	token bigint,
	attempt integer,
	maybe_ran boolean,
	created_at timestamptz,
	expires_at timestamptz,
	retry_after integer);

COMMENT ON TYPE @extschema@.idem_answer IS
'what idem_reserve answers: whether the caller may act, or what has become of the key';
COMMENT ON COLUMN @extschema@.idem_answer.status IS
'reserved, in_progress, done, failed or expired';
COMMENT ON COLUMN @extschema@.idem_answer.result IS
'done: the result; failed: the error';
COMMENT ON COLUMN @extschema@.idem_answer.token IS
'reserved: the fencing token to settle with';
COMMENT ON COLUMN @extschema@.idem_answer.attempt IS
'which reservation of the key this is, from 1';
COMMENT ON COLUMN @extschema@.idem_answer.maybe_ran IS
'an earlier attempt may have had its effect: verify before acting';
COMMENT ON COLUMN @extschema@.idem_answer.created_at IS
'first reservation of the key';
COMMENT ON COLUMN @extschema@.idem_answer.expires_at IS
'in progress: end of the lease; otherwise: end of memory';
COMMENT ON COLUMN @extschema@.idem_answer.retry_after IS
'in_progress: seconds left of the lease, if known';

CREATE FUNCTION @extschema@.idem_reserve(
	key text,
	ttl interval DEFAULT NULL,
	request jsonb DEFAULT NULL,
	wait interval DEFAULT '0',
	takeover interval DEFAULT NULL,
	holder text DEFAULT NULL,
	scope text DEFAULT NULL)
RETURNS @extschema@.idem_answer
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_reserve(text, interval, jsonb, interval, interval, text, text) IS
'reserve a key before its action runs, or learn what has become of it';

CREATE FUNCTION @extschema@.idem_complete(
	key text,
	result jsonb DEFAULT NULL,
	token bigint DEFAULT 0,
	ttl interval DEFAULT NULL,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_complete(text, jsonb, bigint, interval, text) IS
'record the result of a reserved action, for every later caller';

CREATE FUNCTION @extschema@.idem_fail(
	key text,
	error jsonb DEFAULT NULL,
	token bigint DEFAULT 0,
	ttl interval DEFAULT NULL,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_fail(text, jsonb, bigint, interval, text) IS
'record that a reserved action has failed for good, for every later caller';

CREATE FUNCTION @extschema@.idem_release(
	key text,
	token bigint DEFAULT 0,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_release(text, bigint, text) IS
'give a reservation back: the action did not run';

CREATE FUNCTION @extschema@.idem_abandon(
	key text,
	token bigint DEFAULT 0,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_abandon(text, bigint, text) IS
'end a reservation''s lease: nobody knows whether the action ran';

CREATE FUNCTION @extschema@.idem_extend(
	key text,
	ttl interval DEFAULT NULL,
	token bigint DEFAULT 0,
	scope text DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_extend(text, interval, bigint, text) IS
'extend a reservation''s lease, and keep others out until the transaction ends';

CREATE FUNCTION @extschema@.idem_lookup(
	key text,
	scope text DEFAULT NULL)
RETURNS TABLE (
	scope text,
	key text,
	status text,
	attempt integer,
	maybe_ran boolean,
	owner name,
	holder text,
	created_at timestamptz,
	reserved_at timestamptz,
	completed_at timestamptz,
	expires_at timestamptz,
	result jsonb)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

COMMENT ON FUNCTION @extschema@.idem_lookup(text, text) IS
'what is known of a key, without touching it';

-- keys and fingerprints

CREATE FUNCTION @extschema@.idem_canonical(document jsonb)
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE STRICT
AS 'MODULE_PATHNAME', 'idem_canonical';

COMMENT ON FUNCTION @extschema@.idem_canonical(jsonb) IS
'canonical form of a JSON value: RFC 8785, with numbers at their exact decimal value';

CREATE FUNCTION @extschema@.idem_fingerprint(request jsonb)
RETURNS bytea
LANGUAGE C IMMUTABLE PARALLEL SAFE STRICT
AS 'MODULE_PATHNAME', 'idem_fingerprint';

COMMENT ON FUNCTION @extschema@.idem_fingerprint(jsonb) IS
'SHA-256 of the canonical form of a request, over its UTF-8 bytes';

CREATE FUNCTION @extschema@.idem_key(
	operation text,
	identity text,
	fields jsonb DEFAULT '{}')
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_key';

COMMENT ON FUNCTION @extschema@.idem_key(text, text, jsonb) IS
'key of an action named by its operation, the identity of what it acts on and further fields';

CREATE FUNCTION @extschema@.idem_step_key(run_id text, step bigint)
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_step_key';

COMMENT ON FUNCTION @extschema@.idem_step_key(text, bigint) IS
'key of a step of a plan, assigned before anything runs';

CREATE FUNCTION @extschema@.idem_call_key(
	tool text,
	args jsonb,
	turn text DEFAULT NULL)
RETURNS text
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_call_key';

COMMENT ON FUNCTION @extschema@.idem_call_key(text, jsonb, text) IS
'key of a tool call named by its arguments and, if given, the turn of the conversation';

-- the sweep and its counters

CREATE FUNCTION @extschema@.idem_sweep(
	OUT expired bigint,
	OUT deleted bigint,
	OUT pages bigint)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_sweep() IS
'mark lapsed leases and delete what is past its memory, in the whole table';

CREATE FUNCTION @extschema@.idem_start_worker()
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_start_worker() IS
'sweep all databases until the server stops; for servers that do not preload the library';

CREATE FUNCTION @extschema@.idem_wake_worker()
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_wake_worker() IS
'have all databases swept at once when the transaction commits';

CREATE FUNCTION @extschema@.idem_stats_read(
	OUT datid oid,
	OUT reserved bigint,
	OUT taken_over bigint,
	OUT replayed bigint,
	OUT in_progress bigint,
	OUT unknown bigint,
	OUT mismatched bigint,
	OUT completed bigint,
	OUT failed bigint,
	OUT released bigint,
	OUT abandoned bigint,
	OUT extended bigint,
	OUT lost bigint,
	OUT swept_expired bigint,
	OUT swept_deleted bigint,
	OUT swept_forgotten bigint,
	OUT sweep_refused bigint,
	OUT rounds bigint,
	OUT last_round timestamptz,
	OUT last_duration interval,
	OUT "position" bigint,
	OUT table_pages bigint,
	OUT revolution interval,
	OUT since timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL SAFE ROWS 10;

COMMENT ON FUNCTION @extschema@.idem_stats_read() IS
'what idem_stats shows';

CREATE VIEW @extschema@.idem_stats AS
	SELECT d.datname, s.*
	FROM @extschema@.idem_stats_read() AS s
	LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) s.datid;

COMMENT ON VIEW @extschema@.idem_stats IS
'what was called and swept in each database since the server started; needs the library preloaded';
COMMENT ON COLUMN @extschema@.idem_stats.datname IS
'the database';
COMMENT ON COLUMN @extschema@.idem_stats.datid IS
'its OID';
COMMENT ON COLUMN @extschema@.idem_stats.reserved IS
'reservations of new, released or forgotten keys';
COMMENT ON COLUMN @extschema@.idem_stats.taken_over IS
'reservations of keys whose earlier attempt had an unknown outcome';
COMMENT ON COLUMN @extschema@.idem_stats.replayed IS
'answers done and failed';
COMMENT ON COLUMN @extschema@.idem_stats.in_progress IS
'answers in_progress';
COMMENT ON COLUMN @extschema@.idem_stats.unknown IS
'answers expired: outcome unknown, takeover not permitted any more';
COMMENT ON COLUMN @extschema@.idem_stats.mismatched IS
'errors IK001: key used for a different request';
COMMENT ON COLUMN @extschema@.idem_stats.completed IS
'results recorded';
COMMENT ON COLUMN @extschema@.idem_stats.failed IS
'definitive failures recorded';
COMMENT ON COLUMN @extschema@.idem_stats.released IS
'reservations given back';
COMMENT ON COLUMN @extschema@.idem_stats.abandoned IS
'reservations given up with their outcome unknown';
COMMENT ON COLUMN @extschema@.idem_stats.extended IS
'leases extended';
COMMENT ON COLUMN @extschema@.idem_stats.lost IS
'errors IK002: reservation lost to a later attempt';
COMMENT ON COLUMN @extschema@.idem_stats.swept_expired IS
'lapsed leases that the sweep marked';
COMMENT ON COLUMN @extschema@.idem_stats.swept_deleted IS
'rows past their memory that the sweep deleted';
COMMENT ON COLUMN @extschema@.idem_stats.swept_forgotten IS
'of these: with their outcome unknown';
COMMENT ON COLUMN @extschema@.idem_stats.sweep_refused IS
'rows that a trigger or a foreign key kept the sweep from writing';
COMMENT ON COLUMN @extschema@.idem_stats.rounds IS
'rounds of the worker';
COMMENT ON COLUMN @extschema@.idem_stats.last_round IS
'when the last one started';
COMMENT ON COLUMN @extschema@.idem_stats.last_duration IS
'how long it took';
COMMENT ON COLUMN @extschema@.idem_stats."position" IS
'the page of the table where the next one starts';
COMMENT ON COLUMN @extschema@.idem_stats.table_pages IS
'how many there were';
COMMENT ON COLUMN @extschema@.idem_stats.revolution IS
'time that the last walk over the whole table took, naps included';
COMMENT ON COLUMN @extschema@.idem_stats.since IS
'when counting began';

REVOKE ALL ON @extschema@.idem_stats FROM PUBLIC;
REVOKE ALL ON FUNCTION
	@extschema@.idem_sweep(),
	@extschema@.idem_start_worker(),
	@extschema@.idem_wake_worker(),
	@extschema@.idem_stats_read()
FROM PUBLIC;

-- so that the launcher finds this database
SELECT @extschema@.idem_wake_worker();

-- privileges

CREATE FUNCTION @extschema@.idem_grant(
	role regrole,
	part text DEFAULT 'caller')
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	callers CONSTANT regprocedure[] := ARRAY[
		'@extschema@.idem_reserve(text, interval, jsonb, interval, interval, text, text)',
		'@extschema@.idem_complete(text, jsonb, bigint, interval, text)',
		'@extschema@.idem_fail(text, jsonb, bigint, interval, text)',
		'@extschema@.idem_release(text, bigint, text)',
		'@extschema@.idem_abandon(text, bigint, text)',
		'@extschema@.idem_extend(text, interval, bigint, text)',
		'@extschema@.idem_lookup(text, text)'];
	monitors CONSTANT regprocedure[] := ARRAY[
		'@extschema@.idem_lookup(text, text)',
		'@extschema@.idem_stats_read()'];
	operators CONSTANT regprocedure[] := callers || ARRAY[
		'@extschema@.idem_stats_read()',
		'@extschema@.idem_sweep()']::regprocedure[];
	granted regprocedure[];
	func regprocedure;
BEGIN
	IF role IS NULL OR part IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = 'role and part must not be null';
	END IF;
	granted := CASE part
		WHEN 'caller' THEN callers
		WHEN 'operator' THEN operators
		WHEN 'monitor' THEN monitors
	END;
	IF granted IS NULL THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('unrecognized part "%s"', part),
			HINT = 'The parts are "caller", "operator" and "monitor".';
	END IF;

	EXECUTE format('GRANT USAGE ON SCHEMA @extschema@ TO %s', role);
	FOREACH func IN ARRAY granted LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', func, role);
	END LOOP;
	IF part IN ('operator', 'monitor') THEN
		EXECUTE format('GRANT SELECT ON @extschema@.idempotency_keys TO %s', role);
		EXECUTE format('GRANT SELECT ON @extschema@.idem_stats TO %s', role);
	END IF;
END;
$$;

COMMENT ON FUNCTION @extschema@.idem_grant(regrole, text) IS
'grant a role what a caller, an operator or a monitor needs';

REVOKE ALL ON FUNCTION
	@extschema@.idem_reserve(text, interval, jsonb, interval, interval, text, text),
	@extschema@.idem_complete(text, jsonb, bigint, interval, text),
	@extschema@.idem_fail(text, jsonb, bigint, interval, text),
	@extschema@.idem_release(text, bigint, text),
	@extschema@.idem_abandon(text, bigint, text),
	@extschema@.idem_extend(text, interval, bigint, text),
	@extschema@.idem_lookup(text, text),
	@extschema@.idem_grant(regrole, text)
FROM PUBLIC;
