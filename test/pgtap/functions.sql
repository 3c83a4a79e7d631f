--
-- The functions, frozen at 1.0: names, arguments, defaults, results and
-- properties.  One that is not listed here fails the test.
--
\unset ECHO
\set QUIET 1
\set ON_ERROR_STOP 1
\pset format unaligned
\pset tuples_only true
\pset pager off
SET client_min_messages = warning;
SET intervalstyle = postgres;

BEGIN;
SELECT no_plan();

CREATE TEMP VIEW functions AS
SELECT p.*
FROM pg_depend AS d JOIN pg_proc AS p
	 ON classid = 'pg_proc'::regclass AND objid = p.oid
WHERE refclassid = 'pg_extension'::regclass
AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_tool')
AND deptype = 'e';

CREATE TEMP TABLE expected (name text, arguments text, result text,
							language text, volatility "char",
							parallel "char", strict boolean);
INSERT INTO expected VALUES
('idem_reserve',
 'key text, ttl interval DEFAULT NULL::interval, '
 'request jsonb DEFAULT NULL::jsonb, '
 'wait interval DEFAULT ''00:00:00''::interval, '
 'takeover interval DEFAULT NULL::interval, '
 'holder text DEFAULT NULL::text, scope text DEFAULT NULL::text, '
 'two_phase boolean DEFAULT NULL::boolean',
 'idem_answer', 'c', 'v', 'u', false),
('idem_complete',
 'key text, result jsonb DEFAULT NULL::jsonb, token bigint DEFAULT 0, '
 'ttl interval DEFAULT NULL::interval, scope text DEFAULT NULL::text',
 'boolean', 'c', 'v', 'u', false),
('idem_fail',
 'key text, error jsonb DEFAULT NULL::jsonb, token bigint DEFAULT 0, '
 'ttl interval DEFAULT NULL::interval, scope text DEFAULT NULL::text',
 'boolean', 'c', 'v', 'u', false),
('idem_release',
 'key text, token bigint DEFAULT 0, scope text DEFAULT NULL::text',
 'boolean', 'c', 'v', 'u', false),
('idem_abandon',
 'key text, token bigint DEFAULT 0, scope text DEFAULT NULL::text',
 'boolean', 'c', 'v', 'u', false),
('idem_extend',
 'key text, ttl interval DEFAULT NULL::interval, token bigint DEFAULT 0, '
 'scope text DEFAULT NULL::text',
 'timestamp with time zone', 'c', 'v', 'u', false),
('idem_lookup',
 'key text, scope text DEFAULT NULL::text',
 'TABLE(scope text, key text, status text, attempt integer, '
 'maybe_ran boolean, owner text, holder text, '
 'created_at timestamp with time zone, '
 'reserved_at timestamp with time zone, '
 'completed_at timestamp with time zone, '
 'expires_at timestamp with time zone, result jsonb, '
 'fingerprint bytea)',
 'c', 'v', 'u', false),
('idem_resolve',
 'key text, status text, result jsonb DEFAULT NULL::jsonb, '
 'ttl interval DEFAULT NULL::interval, force boolean DEFAULT false, '
 'create_missing boolean DEFAULT false, owner name DEFAULT NULL::name, '
 'scope text DEFAULT NULL::text',
 'boolean', 'c', 'v', 'u', false),
('idem_forget',
 'key text, scope text DEFAULT NULL::text', 'boolean', 'c', 'v', 'u', false),
('idem_memory_end',
 'status text, expires_at timestamp with time zone',
 'timestamp with time zone', 'c', 's', 's', true),
('idem_canonical', 'document jsonb', 'text', 'c', 'i', 's', true),
('idem_fingerprint', 'request jsonb', 'bytea', 'c', 'i', 's', true),
('idem_key',
 'operation text, identity text, fields jsonb DEFAULT ''{}''::jsonb',
 'text', 'c', 'i', 's', false),
('idem_step_key', 'run_id text, step bigint', 'text', 'c', 'i', 's', false),
('idem_call_key',
 'tool text, args jsonb, turn text DEFAULT NULL::text',
 'text', 'c', 'i', 's', false),
('idem_sweep', 'OUT expired bigint, OUT deleted bigint, OUT pages bigint',
 'record', 'c', 'v', 'u', false),
('idem_start_worker', '', 'boolean', 'c', 'v', 'u', false),
('idem_wake_worker', '', 'boolean', 'c', 'v', 'u', false),
('idem_stats_read',
 'OUT datid oid, OUT reserved bigint, OUT taken_over bigint, '
 'OUT replayed bigint, OUT in_progress bigint, OUT unknown bigint, '
 'OUT mismatched bigint, OUT completed bigint, OUT failed bigint, '
 'OUT released bigint, OUT abandoned bigint, OUT extended bigint, '
 'OUT lost bigint, OUT swept_expired bigint, OUT swept_deleted bigint, '
 'OUT swept_forgotten bigint, OUT sweep_refused bigint, OUT rounds bigint, '
 'OUT last_round timestamp with time zone, OUT last_duration interval, '
 'OUT "position" bigint, OUT table_pages bigint, OUT revolution interval, OUT ownerless bigint, '
 'OUT since timestamp with time zone',
 'SETOF record', 'c', 'v', 's', false),
('idem_may_act', 'owner text', 'boolean', 'c', 's', 's', true),
('idem_set_privileges', 'role regrole, part text, grants boolean',
 'void', 'plpgsql', 'v', 'u', false),
('idem_grant',
 'role regrole, part text DEFAULT ''caller''::text',
 'void', 'sql', 'v', 'u', false),
('idem_revoke',
 'role regrole, part text DEFAULT ''caller''::text',
 'void', 'sql', 'v', 'u', false);

-- those of gate.sql
CREATE TEMP TABLE gate AS
SELECT unnest(ARRAY['idem_run', 'idem_call', 'idem_begin', 'idem_register',
					'idem_unregister']) AS name;

SELECT set_eq('SELECT proname::text FROM functions',
			  'SELECT name FROM expected UNION ALL TABLE gate',
			  'these functions and no others');
SELECT is(count(*), count(DISTINCT proname), 'none is overloaded')
FROM functions;

SELECT is(pg_get_function_arguments(f.oid), arguments,
		  name || ': arguments and their defaults')
FROM expected LEFT JOIN functions AS f ON proname = name
ORDER BY name COLLATE "C";
SELECT is(pg_get_function_result(f.oid), result, name || ': result')
FROM expected LEFT JOIN functions AS f ON proname = name
ORDER BY name COLLATE "C";
SELECT is(provolatile, volatility, name || ': volatility')
FROM expected LEFT JOIN functions AS f ON proname = name
ORDER BY name COLLATE "C";
SELECT is(proparallel, parallel, name || ': parallel safety')
FROM expected LEFT JOIN functions AS f ON proname = name
ORDER BY name COLLATE "C";
SELECT is(proisstrict, strict, name || ': strictness')
FROM expected LEFT JOIN functions AS f ON proname = name
ORDER BY name COLLATE "C";
SELECT is(lanname::text, language, name || ': language')
FROM expected LEFT JOIN functions AS f ON proname = name
	 LEFT JOIN pg_language AS l ON l.oid = prolang
ORDER BY name COLLATE "C";

-- of all of them
SELECT is_empty('SELECT proname FROM functions WHERE prosecdef',
				'none is SECURITY DEFINER');
SELECT is_empty('SELECT proname FROM functions WHERE proleakproof',
				'none claims to be leakproof');
SELECT is_empty($$SELECT proname FROM functions WHERE prokind <> 'f'$$,
				'all are plain functions');
SELECT is_empty(
	$$SELECT proname FROM functions
	  WHERE pronamespace <> 'public'::regnamespace$$,
	'all are in the extension''s schema');
SELECT set_eq('SELECT proname::text, prorows FROM functions WHERE proretset',
			  $$VALUES ('idem_lookup', 1::real), ('idem_stats_read', 10)$$,
			  'two return a set, and how large it is likely to be');
SELECT is_empty(
	$$SELECT proname FROM functions JOIN pg_language AS l ON l.oid = prolang
	  WHERE lanname = 'c'
	  AND (probin <> '$libdir/idem_tool' OR prosrc <> proname)$$,
	'a C symbol is named as its function, in one library');
SELECT is_empty(
	$$SELECT proname FROM functions JOIN pg_language AS l ON l.oid = prolang
	  WHERE lanname = 'c' AND proconfig IS NOT NULL$$,
	'those in C set nothing');
-- what is neither in C nor parsed already must not depend on the caller's
-- search_path
SELECT is_empty(
	$$SELECT proname FROM functions JOIN pg_language AS l ON l.oid = prolang
	  WHERE lanname <> 'c' AND prosqlbody IS NULL
	  AND proconfig IS DISTINCT FROM '{"search_path=pg_catalog, pg_temp"}'$$,
	'the others bring their own search_path');

-- what a function says of itself is what it returns
SELECT lives_ok(
	$$SELECT status || 'x', result -> 'a', token + 1, attempt + 1,
			 NOT maybe_ran, created_at + interval '1 day',
			 expires_at - created_at, retry_after + 1
	  FROM public.idem_reserve('k')$$, 'idem_reserve returns its columns');
SELECT lives_ok(
	$$SELECT scope || key || status || holder, attempt + 1, NOT maybe_ran,
			 owner || 'x', created_at - reserved_at,
			 completed_at - expires_at, result -> 'a'
	  FROM public.idem_lookup('k')$$, 'idem_lookup returns its columns');

SELECT * FROM finish();
ROLLBACK;
