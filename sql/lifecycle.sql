--
-- The extension comes and goes in one session, and lives in any schema.
--
\pset format unaligned
\pset null '(null)'
SET client_min_messages = warning;
\set SHOW_CONTEXT never

DROP EXTENSION idem_tool;
-- nothing of it is left
SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency_keys%';
SELECT count(*) FROM pg_proc WHERE proname LIKE 'idem\_%';
SELECT count(*) FROM pg_type WHERE typname LIKE '%idem%';

CREATE EXTENSION idem_tool;
SELECT status, token FROM idem_reserve('k');
DROP EXTENSION idem_tool;
CREATE EXTENSION idem_tool;
SELECT status, token FROM idem_reserve('k');
SELECT status, token FROM idem_reserve('k');

-- rolled back, and made again
DROP EXTENSION idem_tool;
BEGIN;
CREATE EXTENSION idem_tool;
SELECT status FROM idem_reserve('k');
SELECT idem_complete('k', '1');
SELECT status, result FROM idem_reserve('k');
ROLLBACK;
CREATE EXTENSION idem_tool;
SELECT status, token FROM idem_reserve('k');
SELECT idem_complete('k', '1', 1);
SELECT status, token FROM idem_reserve('k');

-- dropped, and the drop rolled back
BEGIN;
DROP EXTENSION idem_tool;
ROLLBACK;
SELECT status FROM idem_reserve('k');
SELECT status FROM idem_reserve('k 2');
-- with another one in between
BEGIN;
DROP EXTENSION idem_tool;
CREATE EXTENSION idem_tool;
SELECT status FROM idem_reserve('k');
SAVEPOINT s;
DROP EXTENSION idem_tool;
CREATE SCHEMA inner_schema;
CREATE EXTENSION idem_tool SCHEMA inner_schema;
SELECT status FROM inner_schema.idem_reserve('k');
ROLLBACK TO s;
SELECT status FROM idem_reserve('k');
SELECT idem_complete('k', '2');
ROLLBACK;
SELECT status, result FROM idem_reserve('k');
SELECT status FROM idem_reserve('k 2');

-- dropped while a plan, a cursor and a function know it
PREPARE reserve AS SELECT status FROM idem_reserve('prepared');
EXECUTE reserve;
CREATE FUNCTION reserve_it() RETURNS text LANGUAGE plpgsql
AS $$ BEGIN RETURN (SELECT status FROM idem_reserve('function')); END $$;
SELECT reserve_it();
DROP EXTENSION idem_tool;
\set VERBOSITY sqlstate
EXECUTE reserve;
SELECT reserve_it();
\set VERBOSITY default
CREATE EXTENSION idem_tool;
EXECUTE reserve;
SELECT reserve_it();
DEALLOCATE reserve;
DROP FUNCTION reserve_it;

-- a function without the extension, as left by hand
CREATE SCHEMA leftover;
DO $$
BEGIN
	EXECUTE replace(pg_get_functiondef('idem_lookup'::regproc), 'public.',
					'leftover.');
END $$;
SELECT status FROM idem_reserve('left');
SELECT status FROM leftover.idem_lookup('left');
DROP EXTENSION idem_tool;
SELECT status FROM leftover.idem_lookup('left');
-- a stranger's table of that name is not taken for ours
CREATE TABLE leftover.idempotency_keys (scope text, key text);
CREATE TABLE idempotency_keys (scope text, key text);
SELECT status FROM leftover.idem_lookup('left');
CREATE EXTENSION idem_tool;
DROP TABLE idempotency_keys;
CREATE EXTENSION idem_tool;
SELECT count(*) FROM leftover.idem_lookup('left');
SELECT status FROM idem_reserve('left');
SELECT status FROM leftover.idem_lookup('left');
SELECT count(*) FROM leftover.idempotency_keys;
DROP SCHEMA leftover CASCADE;
DROP EXTENSION idem_tool;

--
-- In another schema: called by its name, or by the search_path
--
DROP ROLE IF EXISTS regress_idem_user;
CREATE ROLE regress_idem_user;
CREATE SCHEMA idem_schema;
CREATE EXTENSION idem_tool SCHEMA idem_schema;
\set VERBOSITY sqlstate
SELECT status, token FROM idem_reserve('k');
\set VERBOSITY default
SELECT status, token FROM idem_schema.idem_reserve('k');
SELECT idem_schema.idem_complete('k', '1', 1);
SELECT status, result FROM idem_schema.idem_lookup('k');
SET search_path = idem_schema, public;
SELECT status, result FROM idem_reserve('k');
SELECT idem_grant('regress_idem_user'),
	   idem_grant('regress_idem_user', 'operator'),
	   idem_grant('regress_idem_user', 'monitor');
RESET search_path;
SELECT idem_schema.idem_grant('regress_idem_user');
SET ROLE regress_idem_user;
SELECT status FROM idem_schema.idem_reserve('mine');
SELECT key, status FROM idem_schema.idempotency_keys;
RESET ROLE;
-- it cannot be moved, but its schema may be renamed
ALTER EXTENSION idem_tool SET SCHEMA public;
ALTER SCHEMA idem_schema RENAME TO idem_renamed;
SELECT status, result FROM idem_renamed.idem_reserve('k');
SELECT status FROM idem_renamed.idem_reserve('new');
SELECT count(*) FROM idem_renamed.idempotency_keys;
DROP EXTENSION idem_tool;
DROP SCHEMA idem_renamed;

-- names that want quoting
CREATE SCHEMA "Idem 100% Schema";
CREATE EXTENSION idem_tool SCHEMA "Idem 100% Schema";
SELECT status, token FROM "Idem 100% Schema".idem_reserve('k');
SELECT "Idem 100% Schema".idem_complete('k', '1', 1);
SELECT status, result FROM "Idem 100% Schema".idem_lookup('k');
SELECT "Idem 100% Schema".idem_grant('regress_idem_user');
SELECT "Idem 100% Schema".idem_grant('regress_idem_user', 'monitor');
SELECT "Idem 100% Schema".idem_key('op', 'id') IS NOT NULL AS key;
SET ROLE regress_idem_user;
SELECT status FROM "Idem 100% Schema".idem_reserve('mine');
SELECT key, status FROM "Idem 100% Schema".idempotency_keys;
RESET ROLE;
SELECT extname, extversion, extrelocatable, extnamespace::regnamespace
FROM pg_extension WHERE extname = 'idem_tool';
DROP EXTENSION idem_tool;
DROP SCHEMA "Idem 100% Schema";

-- dropped with its schema
CREATE SCHEMA idem_new;
CREATE EXTENSION idem_tool VERSION '1.0' SCHEMA idem_new;
SELECT status FROM idem_new.idem_reserve('k');
DROP SCHEMA idem_new CASCADE;
SELECT count(*) FROM pg_extension WHERE extname = 'idem_tool';

-- not by an ordinary user
SET ROLE regress_idem_user;
CREATE EXTENSION idem_tool;
RESET ROLE;
DROP ROLE regress_idem_user;

-- as it was
CREATE EXTENSION idem_tool;
SELECT status, token FROM idem_reserve('k');
TRUNCATE idempotency_keys;
