--
-- idem_run and the gate, frozen at 1.0: the registry's shape, signatures,
-- privileges and comments.
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

-- name, type, NOT NULL and collation of each column of a relation
CREATE FUNCTION pg_temp.columns_of(relation regclass) RETURNS text
LANGUAGE sql AS $$
	SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod),
								CASE WHEN attnotnull THEN 'not null' END,
								nullif(attcollation::regcollation::text, '-')),
					  ', ' ORDER BY attnum)
	FROM pg_attribute WHERE attrelid = relation AND attnum > 0;
$$;

SELECT is(pg_temp.columns_of('idem_tools'),
	'tool text not null "C", function text "default", '
	'effect text not null "default", reservation_ttl interval, '
	'result_ttl interval, takeover interval, fallback_ttl interval, '
	'description text "default"', 'columns of idem_tools');
SELECT col_is_pk('idem_tools', 'tool', 'a tool is registered once');
SELECT is(relpersistence::text || relkind::text, 'pr', 'a permanent table')
FROM pg_class WHERE oid = 'idem_tools'::regclass;
SELECT ok('idem_tools'::regclass = ANY (extconfig), 'dumped with its rows')
FROM pg_extension WHERE extname = 'idem_tool';
SELECT is(pg_temp.columns_of('idem_begun'),
	pg_temp.columns_of('idem_answer')
	|| ', key text "default", provider_key text "default", result_ttl interval',
	'idem_begin returns the columns of idem_reserve and three more');

CREATE TEMP TABLE expected (name text, arguments text, result text,
							language text);
INSERT INTO expected VALUES
('idem_run',
 'key text, tool regprocedure, args jsonb DEFAULT ''{}''::jsonb, ttl interval DEFAULT NULL::interval, '
 'wait interval DEFAULT ''00:00:00''::interval, scope text DEFAULT NULL::text',
 'jsonb', 'c'),
('idem_call',
 'tool text, args jsonb, key text DEFAULT NULL::text, '
 'wait interval DEFAULT ''00:00:00''::interval, scope text DEFAULT NULL::text',
 'jsonb', 'c'),
('idem_begin',
 'tool text, args jsonb, key text DEFAULT NULL::text, wait interval DEFAULT ''00:00:00''::interval, '
 'holder text DEFAULT NULL::text, scope text DEFAULT NULL::text',
 'idem_begun', 'c'),
('idem_register',
 'tool text, function regprocedure DEFAULT NULL::regprocedure, effect text DEFAULT ''write''::text, '
 'reservation_ttl interval DEFAULT NULL::interval, result_ttl interval DEFAULT NULL::interval, '
 'takeover interval DEFAULT NULL::interval, fallback_ttl interval DEFAULT NULL::interval, '
 'description text DEFAULT NULL::text',
 'void', 'c'),
('idem_unregister', 'tool text', 'boolean', 'c');

SELECT is(array[pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
			lanname::text, provolatile::text, proparallel::text,
			(proisstrict OR prosecdef OR proretset)::text],
		  array[arguments, result, language, 'v', 'u', 'false'], name)
FROM expected LEFT JOIN pg_proc AS p ON proname = name
LEFT JOIN pg_language AS l ON l.oid = prolang
ORDER BY name COLLATE "C";
SELECT is(count(*), 5::bigint, 'none is overloaded')
FROM pg_proc WHERE proname IN (SELECT name FROM expected);

-- nobody has anything that he was not granted
SELECT ok(NOT has_function_privilege('pg_monitor', p.oid, 'EXECUTE'),
		  name || ' is not for everybody')
FROM expected JOIN pg_proc AS p ON proname = name
ORDER BY name COLLATE "C";
SELECT ok(NOT has_table_privilege('pg_monitor', 'idem_tools',
		  'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER'),
		  'nor is the registry');

-- everything is explained
SELECT ok(obj_description(p.oid, 'pg_proc') IS NOT NULL, 'comment on ' || name)
FROM expected JOIN pg_proc AS p ON proname = name
ORDER BY name COLLATE "C";
SELECT is_empty(
	$$SELECT attname FROM pg_attribute
	  WHERE attrelid IN ('idem_tools'::regclass, 'idem_begun'::regclass)
	  AND attnum > 0 AND col_description(attrelid, attnum) IS NULL$$,
	'comments on all columns');
SELECT is_empty(
	$$SELECT conname FROM pg_constraint
	  WHERE conrelid = 'idem_tools'::regclass AND contype IN ('p', 'c')
	  AND obj_description(oid, 'pg_constraint') IS NULL$$,
	'and constraints');

SELECT * FROM finish();
ROLLBACK;
