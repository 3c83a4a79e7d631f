--
-- Calls in FROM have a scan of their own once the library is loaded, and behave
-- as with a FunctionScan, with which the suite runs as well.
--
\pset format unaligned
\pset null '(null)'
LOAD 'idem_tool';
SET idem_tool.enable_callscan = on;

-- The scans of calls in a plan
CREATE FUNCTION scans(query text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT JSON, COSTS OFF) ' || query INTO plan;
	RETURN (SELECT string_agg(concat_ws(' ', node ->> 'Node Type',
						  coalesce(node ->> 'Custom Plan Provider',
								   node ->> 'Function Name')), ', ')
			FROM jsonb_path_query(plan::jsonb, 'strict $.**
				? (@."Node Type" == "Custom Scan" || @."Function Name" starts with "idem_")') node);
END $$;

-- used
SELECT scans($$SELECT * FROM idem_reserve('k')$$);
SELECT scans($$SELECT count(*) FROM idem_reserve('k', '1 min', scope => 's') r WHERE r.status = 'done'$$);
SELECT scans($$SELECT * FROM idem_lookup('k')$$);
SELECT scans($$SELECT * FROM idem_begin('tool', '{}', 'k')$$);
SELECT scans($$SELECT r.status FROM unnest(ARRAY['a', 'b']) k, idem_reserve(k) r$$);
SELECT scans($$SELECT (SELECT status FROM idem_reserve('k' || n)) FROM generate_series(1, 2) n$$);
SELECT scans($$INSERT INTO idem_tools SELECT status FROM idem_reserve('k')$$);

-- not used: switched off, or not all that there is
SET idem_tool.enable_callscan = off;
SELECT scans($$SELECT * FROM idem_reserve('k')$$);
SET idem_tool.enable_callscan = on;
SELECT scans($$SELECT * FROM idem_reserve('k') WITH ORDINALITY$$);
SELECT scans($$SELECT * FROM ROWS FROM (idem_reserve('k'), idem_lookup('k'))$$);
SELECT scans($$SELECT r FROM idem_reserve('k') r$$);
SELECT scans($$SELECT status FROM idem_reserve('k') r WHERE r IS NOT NULL$$);
SELECT scans($$SELECT row_to_json(r) FROM idem_reserve('k') r$$);
SELECT scans($$SELECT r.status FROM generate_series(1, 2) n, idem_reserve((SELECT max(key) FROM idempotency_keys WHERE attempt = n)) r$$);
-- an initial plan is a parameter
SELECT scans($$SELECT status FROM idem_reserve((SELECT max(key) FROM idempotency_keys))$$);
-- who may have to repeat a query wants the row as a whole
CREATE TABLE target (id integer PRIMARY KEY, status text);
INSERT INTO target VALUES (1);
SELECT scans($$UPDATE target t SET status = r.status FROM idem_reserve('k') r$$);
SELECT scans($$DELETE FROM target t USING idem_reserve('k') r WHERE r.status = t.status$$);
SELECT scans($$SELECT r.status FROM target t, idem_reserve('k') r FOR UPDATE OF t$$);
SELECT scans($$UPDATE target t SET status = (SELECT status FROM idem_reserve('k' || t.id))$$);

-- the function is no longer the one that we know
BEGIN;
ALTER FUNCTION idem_lookup(text, text) SET search_path = pg_catalog;
SELECT scans($$SELECT * FROM idem_lookup('k')$$);
ROLLBACK;
BEGIN;
ALTER FUNCTION idem_reserve SECURITY DEFINER;
SELECT scans($$SELECT * FROM idem_reserve('k')$$);
ALTER FUNCTION idem_reserve SECURITY INVOKER STRICT;
SELECT status FROM idem_reserve('k');
ROLLBACK;
BEGIN;
ALTER TYPE idem_answer ADD ATTRIBUTE further integer;
SELECT scans($$SELECT * FROM idem_reserve('k')$$);
SELECT status FROM idem_reserve('k');
ROLLBACK;
-- a plan hears of it
PREPARE planned AS SELECT status FROM idem_lookup('planned');
SET plan_cache_mode = force_generic_plan;
SELECT scans('EXECUTE planned');
BEGIN;
ALTER FUNCTION idem_lookup(text, text) SECURITY DEFINER;
SELECT scans('EXECUTE planned');
EXECUTE planned;
ROLLBACK;
SELECT scans('EXECUTE planned');
DEALLOCATE planned;
-- functions of the same name, and ones without it
CREATE FUNCTION pg_temp.idem_lookup(key text, OUT n integer) LANGUAGE sql VOLATILE AS 'SELECT count(*)::int FROM public.idem_lookup(key)';
SELECT scans($$SELECT * FROM pg_temp.idem_lookup('k')$$);

-- From here on with the scan that the server has set
RESET idem_tool.enable_callscan;
RESET plan_cache_mode;
SELECT scans($$SELECT * FROM idem_reserve('k')$$) = CASE WHEN current_setting('idem_tool.enable_callscan')::boolean
	THEN 'Custom Scan idem_reserve' ELSE 'Function Scan idem_reserve' END AS as_set;

-- columns in whatever order, conditions, expressions of them
SELECT attempt, status, 'x' || status AS word, token > 0 AS token FROM idem_reserve('columns');
SELECT retry_after BETWEEN 890 AND 900 AS retry_after, token FROM idem_reserve('columns') WHERE status = 'in_progress';
SELECT 1 AS none FROM idem_reserve('columns') WHERE status = 'reserved';
SELECT count(*) FROM idem_reserve('count');
SELECT FROM idem_reserve('nothing');
SELECT generate_series(1, attempt + 1) AS n, upper(status) AS status FROM idem_reserve('sets') ORDER BY 1;
SELECT status, count(*) OVER () AS rows FROM idem_reserve('window');
SELECT r.status, l.status AS looked_up, l.attempt FROM idem_reserve('both') r, LATERAL idem_lookup('both') l;
SELECT * FROM idem_lookup('absent');
SELECT status, 1 AS n FROM idem_reserve('union 1') UNION ALL SELECT 'x' || status, attempt FROM idem_reserve('union 2')
UNION ALL SELECT key, attempt + 1 FROM idem_lookup('union 1') ORDER BY n DESC, status;
SELECT n, l.key, l.status FROM generate_series(1, 2) n LEFT JOIN LATERAL idem_lookup('columns' || repeat('x', n - 1)) l ON true ORDER BY n;
SELECT n, l.word FROM generate_series(1, 2) n LEFT JOIN LATERAL (SELECT coalesce(status, 'none') || n AS word FROM idem_lookup('columns')) l ON n = 1 ORDER BY n;

-- results that are stored out of line outlive the call
SELECT string_agg(md5(n::text), '') AS large FROM generate_series(1, 3000) n \gset
SELECT idem_complete('large', to_jsonb(:'large'::text), token => token) FROM idem_reserve('large');
SELECT status, result #>> '{}' = :'large' AS same FROM idem_reserve('large');
SELECT n, sum(length(result #>> '{}')) FROM generate_series(1, 3) n, idem_reserve('large') GROUP BY n ORDER BY n;

-- a rescan repeats the answer unless an argument has changed
SET enable_material = off;
SELECT n, r.status, r.token IS NOT NULL AS token
FROM generate_series(1, 3) n LEFT JOIN idem_reserve('unchanged') r ON r.attempt < n + 100 ORDER BY n;
SELECT n, r.status FROM generate_series(1, 4) n, idem_reserve('changed' || n / 2) r ORDER BY n;
SELECT n, (SELECT r.status || n FROM idem_reserve('sub') r) FROM generate_series(1, 3) n ORDER BY n;
SELECT n, (SELECT r.status || n FROM idem_reserve('sub' || n / 2) r WHERE r.attempt < n + 10) FROM generate_series(1, 3) n ORDER BY n;
PREPARE external (text, integer) AS SELECT n, (SELECT r.status FROM idem_reserve($1) r WHERE r.attempt < n + $2) FROM generate_series(1, 3) n ORDER BY n;
EXECUTE external ('external', 1);
EXECUTE external ('external', 1);
EXECUTE external ('externals', 1);
DEALLOCATE external;
RESET enable_material;

-- each row is a call, also where the planner knows rows to be equal
CREATE TABLE batch AS SELECT n, 'batch ' || n % 10 AS key FROM generate_series(1, 100) n;
ANALYZE batch;
WITH answers AS MATERIALIZED (SELECT r.status FROM batch b, idem_reserve(b.key, request => jsonb_build_object('of', lower(b.key || ' request'), 'is', upper(b.key))) r) SELECT status, count(*) FROM answers GROUP BY status ORDER BY status;
WITH answers AS MATERIALIZED (SELECT r.status FROM batch b, LATERAL (SELECT status FROM idem_reserve(b.key || ' limited') LIMIT 1) r) SELECT status, count(*) FROM answers GROUP BY status ORDER BY status;
WITH answers AS MATERIALIZED (SELECT r.status FROM batch b, LATERAL (SELECT status FROM idem_reserve(b.key || ' first') UNION ALL SELECT status FROM idem_reserve(b.key || ' second', request => jsonb_build_object('of', lower(b.key || ' request'), 'is', upper(b.key)))) r) SELECT status, count(*) FROM answers GROUP BY status ORDER BY status;
DROP TABLE batch;

-- cursors, there and back
BEGIN;
DECLARE plain CURSOR FOR SELECT status FROM idem_reserve('cursor');
FETCH BACKWARD FROM plain;
FETCH FROM plain;
FETCH FROM plain;
FETCH FROM plain;
FETCH BACKWARD FROM plain;
FETCH BACKWARD FROM plain;
FETCH FROM plain;
DECLARE scrolled SCROLL CURSOR FOR SELECT n, status FROM generate_series(1, 2) n, idem_reserve('cursor' || n) r;
FETCH LAST FROM scrolled;
FETCH FIRST FROM scrolled;
FETCH ABSOLUTE 2 FROM scrolled;
DECLARE held CURSOR WITH HOLD FOR SELECT status, result FROM idem_reserve('held');
COMMIT;
FETCH FROM held;
CLOSE held;
-- a cursor that is never fetched from has called nobody
BEGIN;
DECLARE unused CURSOR FOR SELECT status FROM idem_reserve('unused');
CLOSE unused;
COMMIT;
SELECT count(*) FROM idem_lookup('unused');

-- errors, in the call and in its arguments, leave all as it was
SELECT outcome_of($$SELECT status FROM idem_reserve(NULL)$$);
SELECT outcome_of($$SELECT status FROM idem_reserve('k', '-1 s')$$);
SELECT outcome_of($$SELECT status FROM generate_series(1, 2) n, idem_reserve('error' || 1 / (2 - n))$$);
SELECT count(*) FROM idem_lookup('error1');
SELECT outcome_of($$SELECT status FROM idem_reserve('error', request => '1')$$);
SELECT outcome_of($$SELECT status FROM idem_reserve('error', request => '2')$$);

-- loops, and calls within calls: a trigger on the table that reserves
DO $$
DECLARE
	answer record;
	statuses text = '';
BEGIN
	FOR n IN 1 .. 8 LOOP
		SELECT status, attempt INTO answer FROM idem_reserve('loop' || n / 2);
		statuses := statuses || ' ' || answer.status;
	END LOOP;
	RAISE NOTICE '%', statuses;
END $$;
CREATE FUNCTION reserve_another() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.key NOT LIKE 'inner%' THEN
		NEW.holder := (SELECT r.status || coalesce(r.result::text, '') FROM idem_reserve('inner ' || NEW.key) r);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER another BEFORE INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION reserve_another();
SELECT n, r.status, l.key, l.holder FROM generate_series(1, 2) n, idem_reserve('outer' || n) r, idem_lookup('outer' || n) l ORDER BY n;
DROP TRIGGER another ON idempotency_keys;
DROP FUNCTION reserve_another;

-- privileges are asked for when a plan is executed, and before anything is done
CREATE ROLE regress_idem_scan;
SELECT idem_grant('regress_idem_scan');
GRANT EXECUTE ON FUNCTION outcome_of TO regress_idem_scan;
PREPARE privileged AS SELECT status FROM idem_reserve('privileged');
SET ROLE regress_idem_scan;
EXECUTE privileged;
RESET ROLE;
SELECT idem_revoke('regress_idem_scan');
SET ROLE regress_idem_scan;
SELECT outcome_of('EXECUTE privileged');
SELECT outcome_of('EXPLAIN EXECUTE privileged');
RESET ROLE;
DEALLOCATE privileged;
DROP OWNED BY regress_idem_scan;
DROP ROLE regress_idem_scan;

-- functions are tracked
BEGIN;
SET LOCAL track_functions = 'all';
SELECT count(*) FROM generate_series(1, 7) n, idem_reserve('tracked' || n) r;
SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'idem_reserve';
COMMIT;

-- a plan outlives the extension that it was made for
PREPARE outlives (text) AS SELECT status, attempt FROM idem_reserve($1);
EXECUTE outlives ('outlives');
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION idem_tool CASCADE;
SAVEPOINT dropped;
SELECT outcome_of($$EXECUTE outlives ('outlives')$$);
ROLLBACK TO dropped;
CREATE EXTENSION idem_tool;
EXECUTE outlives ('outlives');
EXECUTE outlives ('outlives');
ROLLBACK;
EXECUTE outlives ('outlives');
DEALLOCATE outlives;

-- what a row has needed is gone with the next
SELECT count(*) AS rows, max(used) < 100 * 1024 * 1024 AS bounded
FROM (SELECT CASE WHEN n % 1000 = 0 AND r.status = 'done' THEN
			 (SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE n > 0) END AS used
	  FROM generate_series(1, 3000) n, idem_reserve('large' || left(n::text, 0)) r) AS s;

DROP TABLE target;
DROP FUNCTION scans;
TRUNCATE idempotency_keys;
