/* idem_tool--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idem_tool" to load this file. \quit

-- nothing that others have made in the extension's schema is meant below
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- the table

CREATE SEQUENCE @extschema@.idempotency_keys_token_seq AS bigint CACHE 1;

COMMENT ON SEQUENCE @extschema@.idempotency_keys_token_seq IS
'source of the fencing tokens; must never go back';

-- What a completion changes stands at the end: WAL leaves out what a row's new
-- version begins with as its old one did.
CREATE TABLE @extschema@.idempotency_keys (
	scope text COLLATE "C" NOT NULL DEFAULT '',
	key text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL,
	created_at timestamptz NOT NULL,
	reserved_at timestamptz NOT NULL,
	token bigint NOT NULL,
	attempt integer NOT NULL,
	fingerprint bytea,
	holder text,
	maybe_ran boolean NOT NULL,
	expires_at timestamptz NOT NULL,
	completed_at timestamptz,
	status text NOT NULL
		CONSTRAINT idempotency_keys_status_check
		CHECK (status IN ('in_progress', 'done', 'failed', 'released', 'expired')),
	result jsonb,
	CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, scope)
) WITH (fillfactor = 50);

COMMENT ON TABLE @extschema@.idempotency_keys IS
'one row for each idempotency key; written by the idem_ functions';
COMMENT ON COLUMN @extschema@.idempotency_keys.scope IS
'key space, e.g. a tenant or a service';
COMMENT ON COLUMN @extschema@.idempotency_keys.key IS
'names one logical action within its scope';
COMMENT ON COLUMN @extschema@.idempotency_keys.owner IS
'role that reserved the key first; its members may act on it';
COMMENT ON COLUMN @extschema@.idempotency_keys.created_at IS
'first reservation of the key';
COMMENT ON COLUMN @extschema@.idempotency_keys.reserved_at IS
'start of the current attempt';
COMMENT ON COLUMN @extschema@.idempotency_keys.token IS
'fencing token of the current attempt; rises with every reservation of the key';
COMMENT ON COLUMN @extschema@.idempotency_keys.attempt IS
'1 for the first reservation of the key, one more for each later one';
COMMENT ON COLUMN @extschema@.idempotency_keys.fingerprint IS
'SHA-256 of the canonical request, if one was given';
COMMENT ON COLUMN @extschema@.idempotency_keys.holder IS
'name of the current attempt''s executor, if one was given';
COMMENT ON COLUMN @extschema@.idempotency_keys.maybe_ran IS
'an earlier attempt may have had its effect';
COMMENT ON COLUMN @extschema@.idempotency_keys.expires_at IS
'in progress: end of the lease; afterwards: end of memory';
COMMENT ON COLUMN @extschema@.idempotency_keys.completed_at IS
'when the key became done or failed';
COMMENT ON COLUMN @extschema@.idempotency_keys.status IS
'in_progress, done, failed, released or expired (a lapsed lease, once marked)';
COMMENT ON COLUMN @extschema@.idempotency_keys.result IS
'the result (done) or the error (failed)';
COMMENT ON CONSTRAINT idempotency_keys_status_check ON @extschema@.idempotency_keys IS
'the five states of a key';
COMMENT ON CONSTRAINT idempotency_keys_pkey ON @extschema@.idempotency_keys IS
'decides who reserves a key first';
COMMENT ON INDEX @extschema@.idempotency_keys_pkey IS
'the only index of the extension, so that completions stay heap-only updates';

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
	scope text DEFAULT NULL,
	two_phase boolean DEFAULT NULL)
RETURNS @extschema@.idem_answer
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_reserve(text, interval, jsonb, interval, interval, text, text, boolean) IS
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
	owner text,
	holder text,
	created_at timestamptz,
	reserved_at timestamptz,
	completed_at timestamptz,
	expires_at timestamptz,
	result jsonb,
	fingerprint bytea)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

COMMENT ON FUNCTION @extschema@.idem_lookup(text, text) IS
'what is known of a key, without touching it';

-- what operators use

CREATE FUNCTION @extschema@.idem_resolve(
	key text,
	status text,
	result jsonb DEFAULT NULL,
	ttl interval DEFAULT NULL,
	force boolean DEFAULT false,
	create_missing boolean DEFAULT false,
	owner name DEFAULT NULL,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_resolve(text, text, jsonb, interval, boolean, boolean, name, text) IS
'settle a key in progress or of unknown outcome by hand: done, failed or released';

CREATE FUNCTION @extschema@.idem_forget(
	key text,
	scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_forget(text, text) IS
'free a settled key on purpose, so that its action may run again';

CREATE FUNCTION @extschema@.idem_memory_end(
	status text,
	expires_at timestamptz)
RETURNS timestamptz
AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION @extschema@.idem_memory_end(text, timestamptz) IS
'when a key with this status and expires_at is absent to everybody, unless it changes before';

-- no primary key: a sequence that lags behind its rows, after a failover for
-- example, must not keep an operator from his work
CREATE TABLE @extschema@.idem_audit (
	at timestamptz NOT NULL,
	role name NOT NULL,
	session_role name NOT NULL,
	action text NOT NULL,
	scope text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	old_status text NOT NULL,
	new_status text NOT NULL
);
CREATE INDEX idem_audit_at_idx ON @extschema@.idem_audit (at);
ALTER TABLE @extschema@.idem_audit REPLICA IDENTITY FULL;

COMMENT ON TABLE @extschema@.idem_audit IS
'what operators did by idem_resolve and idem_forget; kept for idem_tool.audit_ttl';
COMMENT ON COLUMN @extschema@.idem_audit.at IS
'when it was done';
COMMENT ON COLUMN @extschema@.idem_audit.role IS
'who did it';
COMMENT ON COLUMN @extschema@.idem_audit.session_role IS
'who was logged in';
COMMENT ON COLUMN @extschema@.idem_audit.action IS
'resolve or forget';
COMMENT ON COLUMN @extschema@.idem_audit.scope IS
'scope of the key';
COMMENT ON COLUMN @extschema@.idem_audit.key IS
'the key';
COMMENT ON COLUMN @extschema@.idem_audit.old_status IS
'status before, "absent" if there was none';
COMMENT ON COLUMN @extschema@.idem_audit.new_status IS
'status afterwards; the same if there was nothing to do';
COMMENT ON INDEX @extschema@.idem_audit_at_idx IS
'finds the oldest rows, for the sweep';

SELECT pg_catalog.pg_extension_config_dump('@extschema@.idem_audit', '');

-- Who is granted SELECT sees the rows that he may act on, and whatever else he
-- was granted by a GRANT ALL writes none.  The owner needs policies only under
-- FORCE ROW LEVEL SECURITY.

CREATE FUNCTION @extschema@.idem_may_act(owner text)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION @extschema@.idem_may_act(text) IS
'may the current user act on keys of this owner, or, if that role is gone, as an operator';

ALTER TABLE @extschema@.idempotency_keys ENABLE ROW LEVEL SECURITY;

CREATE POLICY idempotency_keys_members ON @extschema@.idempotency_keys
	FOR SELECT
	USING (@extschema@.idem_may_act(owner));
CREATE POLICY idempotency_keys_owner ON @extschema@.idempotency_keys
	TO pg_database_owner
	USING (true) WITH CHECK (true);

COMMENT ON POLICY idempotency_keys_members ON @extschema@.idempotency_keys IS
'members of a key''s owner see it; operators if the owner is gone';
COMMENT ON POLICY idempotency_keys_owner ON @extschema@.idempotency_keys IS
'the owner of the database administers the table';

ALTER TABLE @extschema@.idem_audit ENABLE ROW LEVEL SECURITY;

CREATE POLICY idem_audit_operators ON @extschema@.idem_audit
	FOR SELECT
	USING (pg_catalog.has_function_privilege(
			'@extschema@.idem_memory_end(text, timestamptz)'::pg_catalog.regprocedure,
			'EXECUTE'));
CREATE POLICY idem_audit_owner ON @extschema@.idem_audit
	TO pg_database_owner
	USING (true) WITH CHECK (true);

COMMENT ON POLICY idem_audit_operators ON @extschema@.idem_audit IS
'read by operators and monitors, as idem_grant makes them';
COMMENT ON POLICY idem_audit_owner ON @extschema@.idem_audit IS
'the owner of the database administers the table';

CREATE VIEW @extschema@.idem_stuck WITH (security_invoker = true) AS
SELECT k.scope, k.key, k.owner, k.holder, k.attempt, k.maybe_ran,
	k.created_at, k.reserved_at,
	@extschema@.idem_memory_end(k.status, k.expires_at) AS expires_at,
	pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) k.reserved_at AS stuck_for
FROM @extschema@.idempotency_keys AS k
WHERE (k.status OPERATOR(pg_catalog.=) 'expired'
	OR k.status OPERATOR(pg_catalog.=) 'in_progress'
	AND k.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())
AND @extschema@.idem_memory_end(k.status, k.expires_at) OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
ORDER BY k.reserved_at;

COMMENT ON VIEW @extschema@.idem_stuck IS
'keys of unknown outcome, oldest first: their lease has ended, nobody has settled them';
COMMENT ON COLUMN @extschema@.idem_stuck.scope IS
'scope of the key';
COMMENT ON COLUMN @extschema@.idem_stuck.key IS
'the key';
COMMENT ON COLUMN @extschema@.idem_stuck.owner IS
'role that reserved the key first';
COMMENT ON COLUMN @extschema@.idem_stuck.holder IS
'name of the last attempt''s executor, if one was given';
COMMENT ON COLUMN @extschema@.idem_stuck.attempt IS
'number of the last attempt';
COMMENT ON COLUMN @extschema@.idem_stuck.maybe_ran IS
'an attempt before the last may have had its effect too';
COMMENT ON COLUMN @extschema@.idem_stuck.created_at IS
'first reservation of the key';
COMMENT ON COLUMN @extschema@.idem_stuck.reserved_at IS
'start of the last attempt';
COMMENT ON COLUMN @extschema@.idem_stuck.expires_at IS
'when the key will be forgotten, unless somebody settles it or takes it over';
COMMENT ON COLUMN @extschema@.idem_stuck.stuck_for IS
'how long ago the last attempt began';

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

-- run once

CREATE FUNCTION @extschema@.idem_run(
	key text,
	tool regprocedure,
	args jsonb DEFAULT '{}',
	ttl interval DEFAULT NULL,
	wait interval DEFAULT '0',
	scope text DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_run(text, regprocedure, jsonb, interval, interval, text) IS
'run a function once for its key, or return what its first run returned';

-- the gate between reads and writes

CREATE TABLE @extschema@.idem_tools (
	tool text COLLATE "C" PRIMARY KEY,
	function text,
	effect text NOT NULL
		CONSTRAINT idem_tools_effect_check
		CHECK (effect IN ('read', 'write', 'idempotent')),
	reservation_ttl interval
		CONSTRAINT idem_tools_reservation_ttl_check
		CHECK (reservation_ttl > '0' AND reservation_ttl <= '100000 years'),
	result_ttl interval
		CONSTRAINT idem_tools_result_ttl_check
		CHECK (result_ttl > '0' AND result_ttl <= '100000 years'),
	takeover interval
		CONSTRAINT idem_tools_takeover_check
		CHECK (takeover >= '0' AND takeover <= '100000 years'),
	fallback_ttl interval
		CONSTRAINT idem_tools_fallback_ttl_check
		CHECK (fallback_ttl > '0' AND fallback_ttl <= '100000 years'),
	description text,
	CONSTRAINT idem_tools_fallback_check
		CHECK (fallback_ttl IS NULL OR effect = 'write')
);

COMMENT ON TABLE @extschema@.idem_tools IS
'what idem_call and idem_begin know of tools; filled by idem_register';
COMMENT ON COLUMN @extschema@.idem_tools.tool IS
'name that callers use';
COMMENT ON COLUMN @extschema@.idem_tools.function IS
'qualified name of the function that it is, with (jsonb); NULL: it runs outside the database';
COMMENT ON COLUMN @extschema@.idem_tools.effect IS
'read; write: needs a key; or idempotent: a write whose target recognizes repetitions itself';
COMMENT ON COLUMN @extschema@.idem_tools.reservation_ttl IS
'length of the lease; NULL: idem_tool.reservation_ttl';
COMMENT ON COLUMN @extschema@.idem_tools.result_ttl IS
'how long the outcome is kept; NULL: idem_tool.result_ttl';
COMMENT ON COLUMN @extschema@.idem_tools.takeover IS
'how long after the first reservation an unknown outcome may be taken over; NULL: idem_tool.takeover';
COMMENT ON COLUMN @extschema@.idem_tools.fallback_ttl IS
'allows calls without a key: equal ones within this time are one; NULL: a key is required';
COMMENT ON COLUMN @extschema@.idem_tools.description IS
'for people and agents who choose a tool';
COMMENT ON CONSTRAINT idem_tools_pkey ON @extschema@.idem_tools IS
'one registration for each name';
COMMENT ON INDEX @extschema@.idem_tools_pkey IS
'finds a tool by its name';
COMMENT ON CONSTRAINT idem_tools_effect_check ON @extschema@.idem_tools IS
'the three effects';
COMMENT ON CONSTRAINT idem_tools_reservation_ttl_check ON @extschema@.idem_tools IS
'positive and finite';
COMMENT ON CONSTRAINT idem_tools_result_ttl_check ON @extschema@.idem_tools IS
'positive and finite';
COMMENT ON CONSTRAINT idem_tools_takeover_check ON @extschema@.idem_tools IS
'not negative, and finite';
COMMENT ON CONSTRAINT idem_tools_fallback_ttl_check ON @extschema@.idem_tools IS
'positive and finite';
COMMENT ON CONSTRAINT idem_tools_fallback_check ON @extschema@.idem_tools IS
'only a write has use for a key';

SELECT pg_catalog.pg_extension_config_dump('@extschema@.idem_tools', '');

ALTER TABLE @extschema@.idem_tools ENABLE ROW LEVEL SECURITY;

CREATE POLICY idem_tools_operators ON @extschema@.idem_tools
	FOR SELECT
	USING (pg_catalog.has_function_privilege(
			'@extschema@.idem_memory_end(text, timestamptz)'::pg_catalog.regprocedure,
			'EXECUTE'));
CREATE POLICY idem_tools_owner ON @extschema@.idem_tools
	TO pg_database_owner
	USING (true) WITH CHECK (true);

COMMENT ON POLICY idem_tools_operators ON @extschema@.idem_tools IS
'read by operators and monitors, as idem_grant makes them';
COMMENT ON POLICY idem_tools_owner ON @extschema@.idem_tools IS
'the owner of the database administers the table';

CREATE FUNCTION @extschema@.idem_register(
	tool text,
	function regprocedure DEFAULT NULL,
	effect text DEFAULT 'write',
	reservation_ttl interval DEFAULT NULL,
	result_ttl interval DEFAULT NULL,
	takeover interval DEFAULT NULL,
	fallback_ttl interval DEFAULT NULL,
	description text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_register(text, regprocedure, text, interval, interval, interval, interval, text) IS
'register a tool, or replace its registration';

CREATE FUNCTION @extschema@.idem_unregister(tool text)
RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_unregister(text) IS
'remove a tool from the registry; false if it was not there';

CREATE FUNCTION @extschema@.idem_call(
	tool text,
	args jsonb,
	key text DEFAULT NULL,
	wait interval DEFAULT '0',
	scope text DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_call(text, jsonb, text, interval, text) IS
'call a registered tool: a write once for its key, a read at once';

CREATE TYPE @extschema@.idem_begun AS (
	status text,
	result jsonb,
	token bigint,
	attempt integer,
	maybe_ran boolean,
	created_at timestamptz,
	expires_at timestamptz,
	retry_after integer,
	key text,
	provider_key text,
	result_ttl interval);

COMMENT ON TYPE @extschema@.idem_begun IS
'what idem_begin answers: whether a tool may run, and under which key';
COMMENT ON COLUMN @extschema@.idem_begun.status IS
'unkeyed: run it; otherwise as idem_reserve: reserved, in_progress, done, failed or expired';
COMMENT ON COLUMN @extschema@.idem_begun.result IS
'done: the result; failed: the error';
COMMENT ON COLUMN @extschema@.idem_begun.token IS
'reserved: the fencing token to settle with';
COMMENT ON COLUMN @extschema@.idem_begun.attempt IS
'which reservation of the key this is, from 1';
COMMENT ON COLUMN @extschema@.idem_begun.maybe_ran IS
'an earlier attempt may have had its effect: verify before acting';
COMMENT ON COLUMN @extschema@.idem_begun.created_at IS
'first reservation of the key';
COMMENT ON COLUMN @extschema@.idem_begun.expires_at IS
'in progress: end of the lease; otherwise: end of memory';
COMMENT ON COLUMN @extschema@.idem_begun.retry_after IS
'in_progress: seconds left of the lease, if known';
COMMENT ON COLUMN @extschema@.idem_begun.key IS
'the key to settle with';
COMMENT ON COLUMN @extschema@.idem_begun.provider_key IS
'the key to hand on to whoever carries the action out; the same for every attempt';
COMMENT ON COLUMN @extschema@.idem_begun.result_ttl IS
'the ttl to settle with, from the registry; NULL: the setting';

CREATE FUNCTION @extschema@.idem_begin(
	tool text,
	args jsonb,
	key text DEFAULT NULL,
	wait interval DEFAULT '0',
	holder text DEFAULT NULL,
	scope text DEFAULT NULL)
RETURNS @extschema@.idem_begun
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.idem_begin(text, jsonb, text, interval, text, text) IS
'decide whether a tool outside the database may run, and reserve its key if it is a write';

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
	OUT ownerless bigint,
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
COMMENT ON COLUMN @extschema@.idem_stats.ownerless IS
'keys that it met whose owner is a role that does not exist; only operators may settle them';
COMMENT ON COLUMN @extschema@.idem_stats.since IS
'when counting began';

-- so that the launcher finds this database
SELECT @extschema@.idem_wake_worker();

-- privileges

-- The schema is looked up when it is needed: it may have been renamed.
CREATE FUNCTION @extschema@.idem_set_privileges(
	role regrole,
	part text,
	grants boolean)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text := CASE WHEN grants THEN 'GRANT %s %s.%s TO %I' ELSE 'REVOKE %s %s.%s FROM %I' END;
	schema text;
	name text;
	object record;
BEGIN
	IF role IS NULL OR part IS NULL THEN
		RAISE null_value_not_allowed USING
			MESSAGE = 'role and part must not be null';
	END IF;
	IF part NOT IN ('caller', 'operator', 'monitor') THEN
		RAISE invalid_parameter_value USING
			MESSAGE = format('unrecognized part "%s"', part),
			HINT = 'The parts are "caller", "operator" and "monitor".';
	END IF;
	SELECT rolname INTO name FROM pg_roles WHERE oid = role;
	IF NOT FOUND THEN
		RAISE undefined_object USING
			MESSAGE = format('role with OID %s does not exist', role::oid);
	END IF;
	SELECT extnamespace::regnamespace INTO schema
		FROM pg_extension WHERE extname = 'idem_tool';

	-- what the schema is needed for besides is not known here
	IF grants THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', schema, name);
	END IF;
	FOR object IN
		SELECT o.privilege, o.name
		FROM (VALUES
			('EXECUTE ON FUNCTION', 'idem_reserve(text, interval, jsonb, interval, interval, text, text, boolean)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_complete(text, jsonb, bigint, interval, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_fail(text, jsonb, bigint, interval, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_release(text, bigint, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_abandon(text, bigint, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_extend(text, interval, bigint, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_lookup(text, text)', '{caller,operator,monitor}'),
			('EXECUTE ON FUNCTION', 'idem_canonical(jsonb)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_fingerprint(jsonb)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_key(text, text, jsonb)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_step_key(text, bigint)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_call_key(text, jsonb, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_run(text, regprocedure, jsonb, interval, interval, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_call(text, jsonb, text, interval, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_begin(text, jsonb, text, interval, text, text)', '{caller}'),
			('EXECUTE ON FUNCTION', 'idem_register(text, regprocedure, text, interval, interval, interval, interval, text)', '{operator}'),
			('EXECUTE ON FUNCTION', 'idem_unregister(text)', '{operator}'),
			('EXECUTE ON FUNCTION', 'idem_resolve(text, text, jsonb, interval, boolean, boolean, name, text)', '{operator}'),
			('EXECUTE ON FUNCTION', 'idem_forget(text, text)', '{operator}'),
			('EXECUTE ON FUNCTION', 'idem_sweep()', '{operator}'),
			('EXECUTE ON FUNCTION', 'idem_memory_end(text, timestamptz)', '{operator,monitor}'),
			('EXECUTE ON FUNCTION', 'idem_stats_read()', '{operator,monitor}'),
			('SELECT ON', 'idempotency_keys', '{operator,monitor}'),
			('SELECT ON', 'idem_tools', '{operator,monitor}'),
			('SELECT ON', 'idem_stuck', '{operator,monitor}'),
			('SELECT ON', 'idem_audit', '{operator}'),
			-- which keys there are is no business of monitoring
			('SELECT (at, role, session_role, action, old_status, new_status) ON', 'idem_audit', '{monitor}'),
			('SELECT ON', 'idem_stats', '{operator,monitor}')
		) AS o (privilege, name, parts)
		WHERE part = ANY (o.parts::text[])
	LOOP
		EXECUTE format(command, object.privilege, schema, object.name, name);
	END LOOP;
END;
$$;

COMMENT ON FUNCTION @extschema@.idem_set_privileges(regrole, text, boolean) IS
'what idem_grant and idem_revoke do';

-- bodies that were parsed here call what was meant here, whatever is created or
-- renamed later
CREATE FUNCTION @extschema@.idem_grant(
	role regrole,
	part text DEFAULT 'caller')
RETURNS void
LANGUAGE sql
BEGIN ATOMIC
	SELECT @extschema@.idem_set_privileges(role, part, true);
END;

COMMENT ON FUNCTION @extschema@.idem_grant(regrole, text) IS
'grant a role what a caller, an operator or a monitor needs';

CREATE FUNCTION @extschema@.idem_revoke(
	role regrole,
	part text DEFAULT 'caller')
RETURNS void
LANGUAGE sql
BEGIN ATOMIC
	SELECT @extschema@.idem_set_privileges(role, part, false);
END;

COMMENT ON FUNCTION @extschema@.idem_revoke(regrole, text) IS
'take back what idem_grant granted; what another part needs as well has to be granted again';

-- Everything belongs to whoever owns the database, and to nobody else whatever
-- default privileges say.  Before any other GRANT or REVOKE: a dump would take
-- what they did for something that was changed since.
DO $$
DECLARE
	object record;
	privilege record;
BEGIN
	FOR object IN
		SELECT i.type, i.identity, d.classid, d.objid
		FROM pg_depend AS d
		JOIN pg_extension AS e ON e.oid = d.refobjid
		CROSS JOIN pg_identify_object(d.classid, d.objid, d.objsubid) AS i
		WHERE d.refclassid = 'pg_extension'::regclass
		AND e.extname = 'idem_tool' AND d.deptype = 'e'
		AND (i.type IN ('function', 'table', 'view', 'sequence')
			-- since 17 a table's row type and array type are members as well,
			-- and go with the table
			OR EXISTS (
				SELECT FROM pg_type AS t JOIN pg_class AS c ON c.oid = t.typrelid
				WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid
				AND c.relkind = 'c'))
	LOOP
		EXECUTE format('ALTER %s %s OWNER TO pg_database_owner',
			object.type, object.identity);
		FOR privilege IN
			SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee,
				CASE object.type WHEN 'function' THEN 'FUNCTION' WHEN 'type' THEN 'TYPE' ELSE 'TABLE' END AS kind
			FROM (
				SELECT relacl FROM pg_class
					WHERE object.classid = 'pg_class'::regclass AND oid = object.objid
				UNION ALL
				SELECT coalesce(proacl, acldefault('f', proowner)) FROM pg_proc
					WHERE object.classid = 'pg_proc'::regclass AND oid = object.objid
				UNION ALL
				SELECT typacl FROM pg_type
					WHERE object.classid = 'pg_type'::regclass AND oid = object.objid
				) AS o (acl)
			CROSS JOIN aclexplode(o.acl) AS a
			WHERE a.grantee <> 'pg_database_owner'::regrole
			-- types are for all to use
			AND (object.type <> 'type' OR a.grantee <> 0)
		LOOP
			EXECUTE format('REVOKE ALL ON %s %s FROM %s CASCADE',
				privilege.kind, object.identity, privilege.grantee);
		END LOOP;
	END LOOP;
END;
$$;

-- says what anybody can find out about himself, to whoever reads the table
GRANT EXECUTE ON FUNCTION @extschema@.idem_may_act(text) TO PUBLIC;

-- The worker and operators write as the owner, who has to find the tables.  The
-- schema is not the extension's: a dump must not take its privileges for what
-- the extension makes anew.
DO $$
DECLARE
	schema oid := '@extschema@'::regnamespace;
	known boolean := EXISTS (
		SELECT FROM pg_init_privs
		WHERE classoid = 'pg_namespace'::regclass AND objoid = schema);
BEGIN
	IF NOT has_schema_privilege('pg_database_owner', schema, 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %s TO pg_database_owner',
			schema::regnamespace);
		IF NOT known THEN
			DELETE FROM pg_init_privs
				WHERE classoid = 'pg_namespace'::regclass AND objoid = schema;
		END IF;
	END IF;
END;
$$;
