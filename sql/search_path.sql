--
-- Nothing that a user can create is run or used by the functions: operators,
-- functions, types, tables of our names, in whatever search_path.
--
\pset format unaligned
\pset null '(null)'
SET client_min_messages = warning;
\set SHOW_CONTEXT never
-- left over from a run that was interrupted
DROP ROLE IF EXISTS regress_idem_evil, regress_idem_victim, regress_idem_new;
CREATE ROLE regress_idem_evil;
CREATE ROLE regress_idem_victim;
CREATE ROLE regress_idem_new;
SELECT idem_grant(role, part)
FROM unnest(ARRAY['regress_idem_evil', 'regress_idem_victim']::regrole[]) AS role,
	 unnest(ARRAY['caller', 'operator']) AS part;
CREATE SCHEMA evil AUTHORIZATION regress_idem_evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;

SET ROLE regress_idem_evil;
CREATE TABLE evil.caught (who text, what text);
GRANT ALL ON evil.caught TO PUBLIC;
CREATE FUNCTION evil.catch(what text) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO evil.caught VALUES (current_user, what); END $$;

-- operators for every type that is compared, and functions by the names that
-- the extension might use
DO $$
DECLARE
	t text;
	op text;
BEGIN
	FOREACH t IN ARRAY ARRAY['text', 'name', 'bigint', 'integer', 'timestamptz',
							 'interval', 'jsonb', 'bytea', 'boolean', 'oid',
							 'regrole', 'regprocedure'] LOOP
		EXECUTE format('CREATE FUNCTION evil.compare(a %1$s, b %1$s)
						RETURNS boolean LANGUAGE plpgsql AS %2$L', t,
					   format('BEGIN PERFORM evil.catch(%L); RETURN true; END',
							  'compare ' || t));
		FOREACH op IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>='] LOOP
			EXECUTE format('CREATE OPERATOR evil.%1$s (
							FUNCTION = evil.compare,
							LEFTARG = %2$s, RIGHTARG = %2$s)', op, t);
		END LOOP;
	END LOOP;
END $$;
CREATE FUNCTION evil.compare(a name, b text) RETURNS boolean LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('compare name, text'); RETURN true; END $$;
CREATE OPERATOR evil.= (FUNCTION = evil.compare, LEFTARG = name, RIGHTARG = text);
CREATE FUNCTION evil.plus(a timestamptz, b interval) RETURNS timestamptz
LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('plus'); RETURN '-infinity'; END $$;
CREATE OPERATOR evil.+ (FUNCTION = evil.plus,
						LEFTARG = timestamptz, RIGHTARG = interval);
CREATE FUNCTION evil.concat(a text, b text) RETURNS text LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('concat'); RETURN 'evil'; END $$;
CREATE OPERATOR evil.|| (FUNCTION = evil.concat, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('nextval'); RETURN 1; END $$;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('now'); RETURN '2000-01-01'; END $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('clock_timestamp'); RETURN '2000-01-01'; END $$;
CREATE FUNCTION evil.sha256(bytea) RETURNS bytea LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('sha256'); RETURN ''; END $$;
CREATE FUNCTION evil.format(text, regrole) RETURNS text LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('format'); RETURN 'SELECT 1'; END $$;
CREATE FUNCTION evil.pg_has_role(oid, text) RETURNS boolean LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('pg_has_role'); RETURN true; END $$;
CREATE VIEW evil.pg_roles AS SELECT 0::oid AS oid, 'x'::name AS rolname;
CREATE TABLE evil.pg_class (LIKE pg_catalog.pg_class);
CREATE TABLE evil.pg_extension (LIKE pg_catalog.pg_extension);
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (VALUE <> 'k');
CREATE DOMAIN evil.regrole AS pg_catalog.text;
-- a table, a sequence, a type and a function of our names
CREATE TYPE evil.idem_answer AS (status integer);
CREATE TABLE evil.idempotency_keys (
	LIKE public.idempotency_keys INCLUDING ALL);
CREATE SEQUENCE evil.idempotency_keys_token_seq;
GRANT ALL ON evil.idempotency_keys, evil.idempotency_keys_token_seq TO PUBLIC;
CREATE FUNCTION evil.trap() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('trigger'); RETURN NEW; END $$;
CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON evil.idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION evil.trap();
CREATE FUNCTION evil.idem_lookup(text, text) RETURNS text LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('idem_lookup'); RETURN 'done'; END $$;
RESET ROLE;

-- every function, by its schema: the caller's own names are his own affair
CREATE FUNCTION told() RETURNS pg_catalog.text LANGUAGE plpgsql AS $$
DECLARE
	call pg_catalog.text;
	answer pg_catalog.text;
	answers pg_catalog.text[];
BEGIN
	FOREACH call IN ARRAY ARRAY[
		$q$status FROM public.idem_reserve('k', '1 hour', '{"a": 1}', '0',
										   '1 hour', 'h', 's')$q$,
		$q$status FROM public.idem_reserve('k', '1 hour', '{"a": 1}', '20ms',
										   '1 hour', 'h2', 's')$q$,
		$q$public.idem_extend('k', '2 hours', scope => 's') IS NOT NULL$q$,
		$q$status FROM public.idem_lookup('k', 's')$q$,
		$q$public.idem_release('k', scope => 's')$q$,
		$q$(public.idem_reserve('k', '1 day', '{"a": 1.0}', scope => 's')).status$q$,
		$q$public.idem_abandon('k', scope => 's')$q$,
		$q$public.idem_complete('k', '{"b": [1, 2]}', ttl => '1 month', scope => 's')$q$,
		$q$public.idem_complete('k', '{"b": [1.0, 2]}', scope => 's')$q$,
		$q$result FROM public.idem_reserve('k', scope => 's')$q$,
		$q$status FROM public.idem_reserve('f', scope => 's')$q$,
		$q$public.idem_fail('f', '1', scope => 's')$q$,
		$q$public.idem_canonical('{"b": 1, "a": 2}')$q$,
		$q$pg_catalog.length(public.idem_fingerprint('1'))$q$,
		$q$public.idem_key('op', 'id', '{"a": 1}')$q$,
		$q$public.idem_step_key('run', 1)$q$,
		$q$public.idem_call_key('tool', '{"a": 1}', 'turn')$q$
	] LOOP
		EXECUTE pg_catalog.concat('SELECT ', call) INTO answer;
		answers := pg_catalog.array_append(answers, answer);
	END LOOP;
	-- undone, for the next path to find nothing
	RAISE SQLSTATE 'UNDO1'
	USING MESSAGE = pg_catalog.array_to_string(answers, ' ');
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	RETURN SQLERRM;
END $$;
SELECT told();
SET search_path = evil, pg_catalog, public;
SELECT public.told();
SET ROLE regress_idem_victim;
SELECT public.told();
-- temporary ones, first in the path
RESET ROLE;
RESET search_path;
SET ROLE regress_idem_victim;
CREATE TEMP TABLE idempotency_keys (
	LIKE public.idempotency_keys INCLUDING ALL);
CREATE TEMP SEQUENCE idempotency_keys_token_seq;
CREATE TYPE pg_temp.idem_answer AS (status integer);
CREATE TEMP TABLE pg_extension (LIKE pg_catalog.pg_extension);
CREATE FUNCTION pg_temp.trap() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM evil.catch('temp trigger'); RETURN NEW; END $$;
CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON pg_temp.idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION pg_temp.trap();
SET search_path = pg_temp, evil, pg_catalog, public;
SELECT public.told();
SELECT pg_catalog.count(*) FROM pg_temp.idempotency_keys;
SELECT is_called FROM pg_temp.idempotency_keys_token_seq;
-- none at all
SET search_path = '';
SELECT public.told();
RESET search_path;

-- row security, for who may read the table
SELECT count(*) FROM public.idempotency_keys;
SELECT status FROM public.idem_reserve('seen');
RESET ROLE;
SELECT status FROM public.idem_reserve('not seen');
SET ROLE regress_idem_victim;
SET search_path = evil, pg_catalog;
SELECT key::pg_catalog.text FROM public.idempotency_keys;
RESET search_path;
RESET ROLE;

-- idem_grant, by the superuser
SET search_path = pg_temp, evil, pg_catalog, public;
SELECT public.idem_grant('regress_idem_evil', 'operator');
SELECT public.idem_grant('regress_idem_new', 'monitor');
SELECT public.idem_grant('regress_idem_new', 'boss');
RESET search_path;
SELECT has_table_privilege('regress_idem_new', 'public.idempotency_keys',
						   'SELECT') AS granted;

-- the installation
DROP EXTENSION idem_tool;
SET search_path = evil, pg_catalog;
CREATE EXTENSION idem_tool SCHEMA public;
RESET search_path;
SELECT told();
SELECT collname, count(*) FROM pg_attribute AS a
	   JOIN pg_collation AS c ON c.oid = attcollation
WHERE attrelid = 'public.idempotency_keys'::regclass
	AND attname IN ('scope', 'key') GROUP BY collname;
SELECT atttypid::regtype, count(*) FROM pg_attribute
WHERE attrelid = 'public.idempotency_keys'::regclass AND attnum > 0
GROUP BY atttypid ORDER BY 1;

-- nothing has walked into it
SELECT * FROM evil.caught;
SELECT count(*) FROM evil.idempotency_keys;
SELECT is_called FROM evil.idempotency_keys_token_seq;
-- though it would
SET search_path = evil, pg_catalog;
SELECT 1 OPERATOR(evil.=) 2 AS caught;
RESET search_path;
SELECT what FROM evil.caught;

DROP TABLE pg_temp.idempotency_keys, pg_temp.pg_extension;
DROP SEQUENCE pg_temp.idempotency_keys_token_seq;
DROP TYPE pg_temp.idem_answer;
TRUNCATE idempotency_keys;
DROP FUNCTION told;
DROP SCHEMA evil CASCADE;
DROP OWNED BY regress_idem_evil, regress_idem_victim, regress_idem_new;
DROP ROLE regress_idem_evil, regress_idem_victim, regress_idem_new;
