--
-- Privileges: as installed, nothing for anybody but the owner, on any object
-- of the extension; and what idem_grant gives.
--
\unset ECHO
\set QUIET 1
\set ON_ERROR_STOP 1
\pset format unaligned
\pset tuples_only true
\pset pager off
SET client_min_messages = warning;

BEGIN;
SELECT no_plan();

CREATE TEMP VIEW functions AS
SELECT p.*
FROM pg_depend AS d JOIN pg_proc AS p
	 ON classid = 'pg_proc'::regclass AND objid = p.oid
WHERE refclassid = 'pg_extension'::regclass
AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_tool')
AND deptype = 'e';
CREATE TEMP VIEW relations AS
SELECT c.*, CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char" AS acltype
FROM pg_depend AS d JOIN pg_class AS c
	 ON classid = 'pg_class'::regclass AND objid = c.oid
WHERE refclassid = 'pg_extension'::regclass
AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_tool')
AND deptype = 'e';

-- PUBLIC is grantee 0; without an ACL it may execute every function
SELECT is_empty(
	format('SELECT privilege_type
			FROM functions,
				 aclexplode(coalesce(proacl, acldefault(''f'', proowner)))
			WHERE oid = %s AND grantee <> proowner', oid),
	'nobody but the owner may execute ' || proname)
FROM functions WHERE proname <> 'idem_may_act' ORDER BY proname COLLATE "C";
SELECT is_empty(
	format('SELECT privilege_type
			FROM relations,
				 aclexplode(coalesce(relacl, acldefault(acltype, relowner)))
			WHERE oid = %s AND grantee <> relowner', oid),
	'nobody but the owner has a privilege on ' || relname)
FROM relations ORDER BY relname COLLATE "C";
SELECT is_empty(
	$$SELECT attname FROM relations AS c JOIN pg_attribute ON attrelid = c.oid
	  WHERE attacl IS NOT NULL$$,
	'nor on single columns');
SELECT ok(has_function_privilege('public', 'public.idem_may_act(text)', 'EXECUTE'),
		  'but for the condition of a policy');
SELECT is_empty(
	$$SELECT proname FROM functions WHERE proowner <> 'pg_database_owner'::regrole$$,
	'functions belong to the owner of the database');
SELECT is_empty(
	$$SELECT relname FROM relations WHERE relowner <> 'pg_database_owner'::regrole$$,
	'so do tables, views and sequences');
SELECT is_empty(
	$$SELECT typname FROM pg_type JOIN pg_depend ON classid = 'pg_type'::regclass AND objid = pg_type.oid
	  WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idem_tool')
	  AND typowner <> 'pg_database_owner'::regrole$$,
	'and types');

-- the same as a role sees it
CREATE ROLE regress_idem_nobody;
SELECT ok(NOT has_function_privilege('regress_idem_nobody', oid, 'EXECUTE'),
		  'a new role may not execute ' || proname)
FROM functions WHERE proname <> 'idem_may_act' ORDER BY proname COLLATE "C";
SELECT ok(NOT has_table_privilege('regress_idem_nobody', oid,
								  'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, '
								  'REFERENCES, TRIGGER'),
		  'a new role has no privilege on ' || relname)
FROM relations WHERE relkind <> 'S' ORDER BY relname COLLATE "C";
SELECT ok(NOT has_sequence_privilege('regress_idem_nobody', oid,
									 'SELECT, USAGE, UPDATE'),
		  'a new role has no privilege on ' || relname)
FROM relations WHERE relkind = 'S' ORDER BY relname COLLATE "C";

--
-- idem_grant: what each part is
--
CREATE ROLE regress_idem_caller;
CREATE ROLE regress_idem_operator;
CREATE ROLE regress_idem_monitor;
SELECT public.idem_grant('regress_idem_caller') \gset ignored_
SELECT public.idem_grant('regress_idem_operator', 'operator') \gset ignored_
SELECT public.idem_grant('regress_idem_monitor', 'monitor') \gset ignored_

-- but for those that only compute: keys, fingerprints
PREPARE executable(name) AS
SELECT proname::text FROM functions
WHERE has_function_privilege($1, oid, 'EXECUTE') AND provolatile <> 'i'
AND proname <> 'idem_may_act';
SELECT set_eq(
	$$EXECUTE executable('regress_idem_caller')$$,
	ARRAY['idem_reserve', 'idem_complete', 'idem_fail', 'idem_release',
		  'idem_abandon', 'idem_extend', 'idem_lookup', 'idem_run',
		  'idem_call', 'idem_begin'], 'functions of a caller');
SELECT set_eq(
	$$EXECUTE executable('regress_idem_operator')$$,
	ARRAY['idem_lookup', 'idem_resolve', 'idem_forget', 'idem_memory_end',
		  'idem_register', 'idem_unregister', 'idem_sweep',
		  'idem_stats_read'], 'functions of an operator');
SELECT set_eq(
	$$EXECUTE executable('regress_idem_monitor')$$,
	ARRAY['idem_lookup', 'idem_memory_end', 'idem_stats_read'],
	'functions of a monitor');

SELECT table_privs_are('public', relname, 'regress_idem_caller',
					   ARRAY[]::text[], 'a caller has no use for ' || relname)
FROM relations WHERE relkind <> 'S' ORDER BY relname COLLATE "C";
SELECT table_privs_are('public', relname, 'regress_idem_operator',
					   ARRAY['SELECT'],
					   'an operator uses ' || relname)
FROM relations WHERE relkind <> 'S' ORDER BY relname COLLATE "C";
SELECT table_privs_are('public', relname, 'regress_idem_monitor',
					   ARRAY['SELECT'], 'a monitor reads ' || relname)
FROM relations WHERE relkind <> 'S' AND relname <> 'idem_audit' ORDER BY relname COLLATE "C";
SELECT is(string_agg(attname, ' ' ORDER BY attnum),
		  'at role session_role action old_status new_status',
		  'a monitor reads what operators did, but not to which keys')
FROM pg_attribute WHERE attrelid = 'public.idem_audit'::regclass AND attnum > 0
AND has_column_privilege('regress_idem_monitor', attrelid, attnum, 'SELECT');
SELECT sequence_privs_are('public', relname, role, ARRAY[]::text[],
						  role || ' has no use for ' || relname)
FROM relations, unnest(ARRAY['regress_idem_caller', 'regress_idem_operator',
							 'regress_idem_monitor']) AS role
WHERE relkind = 'S' ORDER BY relname COLLATE "C", role;
SELECT is_empty(
	$$SELECT proname FROM functions, aclexplode(proacl)
	  WHERE is_grantable AND grantee <> proowner$$,
	'nobody may pass on what idem_grant gave him');


-- idem_revoke takes all of it back, but for the schema
SELECT public.idem_revoke('regress_idem_caller') \gset ignored_
SELECT public.idem_revoke('regress_idem_operator', 'operator') \gset ignored_
SELECT public.idem_revoke('regress_idem_monitor', 'monitor') \gset ignored_
SELECT is_empty(
	$$SELECT proname, grantee::regrole FROM functions, aclexplode(proacl)
	  WHERE grantee <> proowner AND grantee <> 0
	  UNION ALL SELECT relname, grantee::regrole FROM relations, aclexplode(relacl)
	  WHERE grantee <> relowner
	  UNION ALL SELECT attname, grantee::regrole FROM relations AS c
	  JOIN pg_attribute ON attrelid = c.oid, aclexplode(attacl)$$,
	'idem_revoke takes back what idem_grant gave');

SELECT * FROM finish();
ROLLBACK;
