--
-- The schema, frozen at 1.0: what the extension consists of, its tables with
-- columns, constraints and indexes, the sequence, row security, what pg_dump
-- carries, comments on everything.  See gate.sql for the registry of tools.
--
\unset ECHO
\set QUIET 1
\set ON_ERROR_STOP 1
\pset format unaligned
\pset tuples_only true
\pset pager off
SET client_min_messages = warning;
SET timezone = 'UTC';

BEGIN;
SELECT no_plan();

-- What belongs to the extension.  PostgreSQL 17 and later list row and array
-- types here as well.
CREATE TEMP VIEW members AS
SELECT classid, objid, pg_describe_object(classid, objid, 0) AS object
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass
AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_tool')
AND deptype = 'e'
AND NOT (classid = 'pg_type'::regclass AND EXISTS (
	SELECT FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = typrelid
	WHERE t.oid = objid AND (typcategory = 'A' OR relkind IN ('r', 'v'))));

-- its tables, views and row types
CREATE TEMP VIEW relations AS
SELECT c.*
FROM members JOIN pg_class AS c
	 ON classid = 'pg_class'::regclass AND c.oid = objid
	 OR classid = 'pg_type'::regclass AND c.reltype = objid;

-- name, type, NOT NULL and collation of each column
CREATE FUNCTION pg_temp.columns_of(relation text) RETURNS text
LANGUAGE sql AS $$
	SELECT string_agg(
		concat_ws(' ', attname, format_type(atttypid, atttypmod),
				  CASE WHEN attnotnull THEN 'not null' END,
				  CASE WHEN attcollation = 'pg_catalog."C"'::regcollation
					   AND atttypid = 'text'::regtype THEN '"C"' END),
		', ' ORDER BY attnum)
	FROM relations JOIN pg_attribute ON attrelid = oid
	WHERE relname = relation AND attnum > 0
$$;

SELECT is(extversion || ' ' || extrelocatable || ' '
		  || extnamespace::regnamespace,
		  '1.0 false public', 'version and schema of the extension')
FROM pg_extension WHERE extname = 'idem_tool';

-- functions are listed in functions.sql
SELECT set_eq(
	$$SELECT object FROM members WHERE classid <> 'pg_proc'::regclass$$,
	ARRAY['table idempotency_keys', 'sequence idempotency_keys_token_seq',
		  'type idem_answer',
		  'table idem_audit', 'view idem_stuck', 'view idem_stats',
		  'table idem_tools', 'type idem_begun'],
	'these tables and types, no operators or casts');

--
-- Table idempotency_keys
--
SELECT is(concat_ws(' ', relkind, relpersistence, amname, relreplident,
					relhasrules, relhastriggers, relispartition,
					relhassubclass, relrowsecurity, relforcerowsecurity),
		  'r p heap d f f f f t f',
		  'an ordinary permanent heap with row security and nothing else')
FROM relations AS c JOIN pg_am ON pg_am.oid = relam
WHERE relname = 'idempotency_keys';

SELECT is(reloptions, '{fillfactor=50}', 'it has a fillfactor')
FROM relations WHERE relname = 'idempotency_keys';

SELECT is(pg_temp.columns_of('idempotency_keys'),
	'scope text not null "C", key text not null "C", owner text not null "C", '
	'created_at timestamp with time zone not null, '
	'reserved_at timestamp with time zone not null, '
	'token bigint not null, attempt integer not null, fingerprint bytea, '
	'holder text, maybe_ran boolean not null, '
	'expires_at timestamp with time zone not null, '
	'completed_at timestamp with time zone, status text not null, '
	'result jsonb',
	'columns: order, names, types, NOT NULL, collations');
SELECT set_eq(
	$$SELECT attname::text, pg_get_expr(adbin, adrelid)
	  FROM pg_attrdef JOIN pg_attribute
		   ON attrelid = adrelid AND attnum = adnum
	  WHERE adrelid = 'public.idempotency_keys'::regclass$$,
	$$VALUES ('scope', '''''::text')$$,
	'defaults: the empty scope');
SELECT is_empty(
	$$SELECT attname FROM pg_attribute
	  WHERE attrelid = 'public.idempotency_keys'::regclass
	  AND (attidentity <> '' OR attgenerated <> '' OR attisdropped)$$,
	'no identity, generated or dropped columns');

-- PostgreSQL 18 lists NOT NULL here as well
SELECT set_eq(
	$$SELECT conname::text, contype::text, condeferrable, convalidated,
			 conkey::text
	  FROM pg_constraint
	  WHERE conrelid = 'public.idempotency_keys'::regclass
	  AND contype <> 'n'$$,
	$$VALUES ('idempotency_keys_pkey', 'p', false, true, '{2,1}'),
			 ('idempotency_keys_status_check', 'c', false, true, '{13}')$$,
	'constraints: the primary key, which cannot be deferred, and a check');
SELECT set_eq(
	$$SELECT concat_ws(' ', indexrelid::regclass, amname, indisunique,
					   indisvalid, indkey, indpred IS NULL, indexprs IS NULL)
	  FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
		   JOIN pg_am AS a ON a.oid = relam
	  WHERE indrelid = 'public.idempotency_keys'::regclass$$,
	ARRAY['idempotency_keys_pkey btree t t 2 1 t t'],
	'no index but that of the primary key');

CREATE FUNCTION pg_temp.put(status text, key text DEFAULT 'k') RETURNS void
LANGUAGE sql AS $$
	INSERT INTO public.idempotency_keys (key, status, attempt, maybe_ran,
		token, owner, created_at, reserved_at, expires_at)
	VALUES (key, status, 1, false, 1, current_user, now(), now(), now())
$$;
SELECT lives_ok(format('SELECT pg_temp.put(%L, %L)', status, status),
				'status ' || status)
FROM unnest(ARRAY['in_progress', 'done', 'failed', 'released',
				  'expired']) AS status;
SELECT throws_ok(format('SELECT pg_temp.put(%L)', status), '23514', NULL,
				 format('no status "%s"', status))
FROM unnest(ARRAY['', 'reserved', 'Done', 'done ', 'unknown']) AS status;
SELECT throws_ok($$SELECT pg_temp.put(NULL)$$, '23502', NULL, 'a status');
SELECT throws_ok($$SELECT pg_temp.put('done', 'done')$$, '23505', NULL,
				 'a key is there once in its scope');

--
-- The sequence of the tokens
--
SELECT is(concat_ws(' ', format_type(seqtypid, NULL), seqstart, seqincrement,
					seqmin, seqmax, seqcache, seqcycle, relpersistence),
		  'bigint 1 1 1 9223372036854775807 1 f p',
		  'tokens: bigint, by one, never round, none cached, permanent')
FROM pg_sequence JOIN relations ON oid = seqrelid;
-- owned by a column, it would go back with TRUNCATE ... RESTART IDENTITY
SELECT is_empty(
	$$SELECT refobjid::regclass FROM pg_depend
	  WHERE classid = 'pg_class'::regclass
	  AND objid = 'public.idempotency_keys_token_seq'::regclass
	  AND deptype IN ('a', 'i')$$,
	'the sequence is owned by no column');

--
-- The row that idem_reserve returns, and what operators look at
--
SELECT is(pg_temp.columns_of('idem_answer'),
	'status text, result jsonb, token bigint, attempt integer, '
	'maybe_ran boolean, created_at timestamp with time zone, '
	'expires_at timestamp with time zone, retry_after integer',
	'columns of the answer');
SELECT is(pg_temp.columns_of('idem_audit'),
	'at timestamp with time zone not null, role name not null, '
	'session_role name not null, action text not null, '
	'scope text not null "C", key text not null "C", '
	'old_status text not null, new_status text not null',
	'columns of the audit');
SELECT is(relpersistence::text || relkind::text, 'pr', 'the audit is permanent')
FROM relations WHERE relname = 'idem_audit';
SELECT is(pg_temp.columns_of('idem_stuck'),
	'scope text "C", key text "C", owner text "C", holder text, '
	'attempt integer, maybe_ran boolean, '
	'created_at timestamp with time zone, '
	'reserved_at timestamp with time zone, '
	'expires_at timestamp with time zone, stuck_for interval',
	'columns of what is stuck');
SELECT is(reloptions, '{security_invoker=true}',
		  'what is stuck is seen with the rights of who looks')
FROM relations WHERE relname = 'idem_stuck';

--
-- Row security
--
SELECT set_eq(
	$$SELECT relname::text, polname::text, polcmd, polroles::regrole[]::text,
			 pg_get_expr(polqual, polrelid) AS qual, pg_get_expr(polwithcheck, polrelid) AS wcheck
	  FROM relations AS c JOIN pg_policy ON polrelid = c.oid WHERE polroles <> '{0}'$$,
	$$SELECT relname, relname || '_owner' AS polname, '*'::"char" AS polcmd, '{pg_database_owner}' AS polroles,
			 'true' AS qual, 'true' AS wcheck
	  FROM unnest('{idempotency_keys,idem_audit,idem_tools}'::text[]) AS relname$$,
	'the owner may everything, also where row security is forced');
SELECT set_eq(
	$$SELECT relname::text, polname::text, polcmd, polpermissive, polqual IS NOT NULL AS qual, polwithcheck IS NULL AS wcheck
	  FROM relations AS c JOIN pg_policy ON polrelid = c.oid WHERE polroles = '{0}'$$,
	$$VALUES ('idempotency_keys', 'idempotency_keys_members', 'r'::"char", true, true, true),
			 ('idem_audit', 'idem_audit_operators', 'r', true, true, true),
			 ('idem_tools', 'idem_tools_operators', 'r', true, true, true)$$,
	'others read, on a condition');
SELECT is_empty(
	$$SELECT relname FROM relations WHERE relkind = 'r' AND NOT relrowsecurity$$,
	'no table is without row security');

--
-- pg_dump carries all rows and the sequence
--
SELECT set_eq(
	$$SELECT config::regclass::text, condition
	  FROM pg_extension,
		   unnest(extconfig, extcondition) AS c (config, condition)
	  WHERE extname = 'idem_tool'$$,
	$$VALUES ('idempotency_keys', ''), ('idempotency_keys_token_seq', ''),
			 ('idem_audit', ''), ('idem_tools', '')$$,
	'tables and sequence are dumped, without a condition');

--
-- Comments: on everything
--
SELECT isnt(obj_description(objid, classid::regclass::name), NULL,
			'comment on ' || object)
FROM members ORDER BY object COLLATE "C";
SELECT isnt(col_description(attrelid, attnum), NULL,
			format('comment on %s.%s', relname, attname))
FROM relations AS c JOIN pg_attribute ON attrelid = c.oid AND attnum > 0
WHERE relkind <> 'S' ORDER BY relname COLLATE "C", attnum;
SELECT isnt(obj_description(o.oid, 'pg_constraint'), NULL,
			'comment on constraint ' || conname)
FROM relations AS c JOIN pg_constraint AS o
	 ON conrelid = c.oid AND contype <> 'n'
ORDER BY conname COLLATE "C";
SELECT isnt(obj_description(indexrelid, 'pg_class'), NULL,
			'comment on index ' || indexrelid::regclass)
FROM relations AS c JOIN pg_index ON indrelid = c.oid
ORDER BY indexrelid::regclass::text COLLATE "C";
SELECT isnt(obj_description(p.oid, 'pg_policy'), NULL,
			'comment on policy ' || polname)
FROM relations AS c JOIN pg_policy AS p ON polrelid = c.oid;
SELECT isnt(obj_description(oid, 'pg_extension'), NULL,
			'comment on the extension')
FROM pg_extension WHERE extname = 'idem_tool';
SELECT is_empty(
	$$SELECT object, description
	  FROM pg_description JOIN members ON objid = objoid AND classid = classoid
	  WHERE description ~ '^\s*$' OR description ~ '\.$'$$,
	'comments say something, as phrases without a full stop');

SELECT * FROM finish();
ROLLBACK;
