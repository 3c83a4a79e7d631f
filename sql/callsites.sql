--
-- idem_reserve in a target list: (idem_reserve(...)).* is one call per column
-- to PostgreSQL, and one answer to the user.
--
\pset format unaligned
\pset null '(null)'

-- one row
CREATE TEMP TABLE answer AS SELECT (idem_reserve('star')).*;
SELECT status, result, token = token_of('star') AS token, attempt, maybe_ran,
	   created_at IS NOT NULL AS created_at,
	   expires_at IS NOT NULL AS expires_at, retry_after
FROM answer;
SELECT expires_at - created_at AS lease FROM answer;
DROP TABLE answer;
SELECT tokens_taken() AS tokens_before \gset
SELECT (idem_reserve('fields')).status,
	   (idem_reserve('fields')).token > 0 AS token,
	   (idem_reserve('fields')).attempt, (idem_reserve('fields')).retry_after;
SELECT tokens_taken() - :tokens_before AS tokens;
-- the next statement is told what is true now
SELECT (idem_reserve('fields')).status,
	   (idem_reserve('fields')).token > 0 AS token,
	   (idem_reserve('fields')).attempt, (idem_reserve('fields')).retry_after
	   IS NOT NULL AS retry_after;
-- whole rows
SELECT left(idem_reserve('row')::text, 10) AS row;
SELECT a = b AS same, left(a, 10) AS status
FROM (SELECT idem_reserve('rows')::text AS a, idem_reserve('rows')::text AS b)
	 AS s;

-- each state
SELECT (idem_reserve('done')).status,
	   idem_complete('done', '{"n": 1}',
					 token => (idem_reserve('done')).token);
SELECT (idem_reserve('done')).status, (idem_reserve('done')).result,
	   (idem_reserve('done')).token;
SELECT make_state('failed', 'failed') IS NOT NULL AS made;
SELECT (idem_reserve('failed')).status, (idem_reserve('failed')).result;
SELECT make_state('lapsed', 'lapsed') IS NOT NULL AS made;
SELECT (idem_reserve('lapsed')).status, (idem_reserve('lapsed')).attempt,
	   (idem_reserve('lapsed')).maybe_ran;
SELECT (idem_reserve('lapsed')).status, (idem_reserve('lapsed')).attempt;
SELECT make_state('released', 'released') IS NOT NULL AS made;
SELECT (idem_reserve('released')).status, (idem_reserve('released')).attempt;

-- several rows, with a key each
SELECT key, (idem_reserve(key)).status, (idem_reserve(key)).attempt,
	   (idem_reserve(key)).token > 0 AS token,
	   (idem_reserve(key)).retry_after IS NOT NULL AS retry_after
FROM unnest(ARRAY['a', 'b', 'c']) AS key;
-- with the same key: the first wins, the others hear that it has
SELECT nr, (idem_reserve('same')).status,
	   (idem_reserve('same')).token > 0 AS token,
	   (idem_reserve('same')).retry_after IS NOT NULL AS retry_after
FROM generate_series(1, 4) AS nr;
SELECT key, (idem_reserve(key)).status, (idem_reserve(key)).token > 0 AS token
FROM unnest(ARRAY['x', 'x', 'y', 'x', 'z', 'y', 'y']) WITH ORDINALITY
	 AS k (key, nr);
-- two places that take turns: a row is told of no other row's reservation
SELECT nr, CASE nr % 2 WHEN 1 THEN (idem_reserve('turns')).status
		   ELSE (idem_reserve('turns')).status END AS status
FROM generate_series(1, 4) AS nr;
-- in FROM it is one call, however many rows it is joined to
SELECT nr, status, token = token_of('from') AS token
FROM generate_series(1, 3) AS nr, idem_reserve('from') ORDER BY nr;
SELECT nr, status
FROM generate_series(1, 2) AS nr, idem_reserve('from ' || nr) ORDER BY nr;
SELECT a.status AS a, b.status AS b
FROM idem_reserve('from 3') AS a, idem_reserve('from 3') AS b;

-- two keys in one target list
SELECT (idem_reserve('left')).status,
	   (idem_reserve('left')).token > 0 AS token,
	   (idem_reserve('right')).status,
	   (idem_reserve('right')).token > 0 AS token;
SELECT s1, s2, t1 < t2 AS apart
FROM (SELECT (idem_reserve('left 2')).*, (idem_reserve('right 2')).*)
	 AS answers (s1, r1, t1, a1, m1, c1, e1, ra1, s2, r2, t2, a2, m2, c2, e2,
				 ra2);
SELECT nr, (idem_reserve('l' || nr % 2)).status,
	   (idem_reserve('r' || nr)).status,
	   (idem_reserve('l' || nr % 2)).token > 0 AS l,
	   (idem_reserve('r' || nr)).token > 0 AS r
FROM generate_series(1, 4) AS nr;
-- the same key with other arguments is another call
SELECT (idem_reserve('args')).status, (idem_reserve('args', '1 hour')).status,
	   (idem_reserve('args')).token > 0 AS token;
SELECT (idem_reserve('args 2', holder => 'h')).status,
	   (idem_reserve('args 2', request => '1')).status;

-- elsewhere in a statement
SELECT CASE (idem_reserve('case')).status WHEN 'reserved'
	   THEN (idem_reserve('case')).token > 0 END AS token;
SELECT 1 AS one WHERE (idem_reserve('where')).status = 'reserved';
SELECT 1 AS one WHERE (idem_reserve('where')).status = 'reserved';
SELECT array_agg((idem_reserve('agg')).status) FROM generate_series(1, 3);
VALUES ((idem_reserve('values')).status, (idem_reserve('values')).token > 0);
SELECT (idem_reserve('where 2')).token > 0 AS token
WHERE (idem_reserve('where 2')).status = 'reserved';
SELECT key, (idem_reserve(key)).token > 0 AS token
FROM unnest(ARRAY['where 3', 'where 4', 'where 3']) AS key
WHERE (idem_reserve(key)).status = 'reserved';
WITH r AS MATERIALIZED (SELECT (idem_reserve('cte')).*)
SELECT status, token > 0 AS token FROM r;
CREATE TEMP TABLE target (status text, token bigint, nr int DEFAULT 1);
INSERT INTO target SELECT (idem_reserve('insert')).status,
	(idem_reserve('insert')).token;
INSERT INTO target
	VALUES ((idem_reserve('insert 2')).status,
			(idem_reserve('insert 2')).token);
UPDATE target SET status = (idem_reserve('update')).status,
	token = (idem_reserve('update')).token;
SELECT status, token > 0 AS token FROM target;
PREPARE p (text) AS SELECT (idem_reserve($1)).status,
	   (idem_reserve($1)).token > 0 AS token;
EXECUTE p ('prepared');
EXECUTE p ('prepared');
EXECUTE p ('prepared 2');
DEALLOCATE p;

-- in one transaction two statements are two
BEGIN;
SELECT (idem_reserve('tx')).status, (idem_reserve('tx')).token > 0 AS token;
SELECT (idem_reserve('tx')).status, (idem_reserve('tx')).token > 0 AS token;
ROLLBACK;
SELECT (idem_reserve('tx')).status, (idem_reserve('tx')).token > 0 AS token;

--
-- PL/pgSQL: each evaluation is a call
--
DO $$
DECLARE
	a record;
	b record;
	s text;
	t bigint;
BEGIN
	a := idem_reserve('plpgsql');
	b := idem_reserve('plpgsql');
	RAISE NOTICE 'assigned: %, %', a.status, b.status;
	s := (idem_reserve('plpgsql 2')).status;
	t := (idem_reserve('plpgsql 2')).token;
	RAISE NOTICE 'two expressions: %, %', s, t;
	SELECT * INTO a FROM idem_reserve('plpgsql 3');
	SELECT * INTO b FROM idem_reserve('plpgsql 3');
	RAISE NOTICE 'selected: %, %', a.status, b.status;
	SELECT (idem_reserve('plpgsql 4')).* INTO a;
	SELECT (idem_reserve('plpgsql 4')).* INTO b;
	RAISE NOTICE 'star: % %, %', a.status, a.token > 0, b.status;
	IF (idem_reserve('plpgsql 5')).status = 'reserved'
		AND (idem_reserve('plpgsql 5')).token > 0 THEN
		RAISE NOTICE 'one condition';
	END IF;
	IF (idem_reserve('plpgsql 5')).status = 'reserved' THEN
		RAISE NOTICE 'never';
	END IF;
	EXECUTE 'SELECT (idem_reserve($1)).*' INTO a USING 'plpgsql 6';
	EXECUTE 'SELECT (idem_reserve($1)).*' INTO b USING 'plpgsql 6';
	RAISE NOTICE 'executed: % %, %', a.status, a.token > 0, b.status;
END $$;

-- the same place in a loop judges anew at each turn
DO $$
DECLARE
	r record;
	s text;
	told text[];
BEGIN
	FOR i IN 1..3 LOOP
		r := idem_reserve('loop');
		told := told || r.status;
	END LOOP;
	FOR i IN 1..3 LOOP
		s := (idem_reserve('loop 2')).status;
		told := told || s;
	END LOOP;
	FOR i IN 1..3 LOOP
		SELECT (idem_reserve('loop 3')).* INTO r;
		told := told || r.status;
	END LOOP;
	FOR i IN 1..4 LOOP
		r := idem_reserve('loop 4 ' || i % 2);
		told := told || r.status;
	END LOOP;
	RAISE NOTICE '%', told;
	-- settled between two turns
	told := '{}';
	FOR i IN 1..3 LOOP
		r := idem_reserve('loop 5');
		told := told || (r.status || ' ' || r.attempt);
		IF r.status = 'reserved' AND i = 1 THEN
			PERFORM idem_release('loop 5');
		ELSIF r.status = 'reserved' THEN
			PERFORM idem_complete('loop 5', '1');
		END IF;
	END LOOP;
	RAISE NOTICE '%', told;
	-- with a rolled back block in between
	told := '{}';
	FOR i IN 1..2 LOOP
		BEGIN
			r := idem_reserve('loop 6');
			told := told || r.status;
			RAISE EXCEPTION 'undo';
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
	r := idem_reserve('loop 6');
	RAISE NOTICE '%', told || r.status;
END $$;

-- a function's volatility does not turn two statements into one
CREATE FUNCTION mistaken(k text) RETURNS text[] STABLE LANGUAGE plpgsql AS $$
DECLARE
	a text;
	b text;
BEGIN
	a := (idem_reserve(k)).status;
	b := (idem_reserve(k)).status;
	RETURN ARRAY[a, b];
END $$;
SELECT mistaken('mistaken');

-- in functions that are called for each row, or inlined
CREATE FUNCTION sql_status(k text) RETURNS text LANGUAGE sql
	AS $$ SELECT (idem_reserve(k)).status $$;
CREATE FUNCTION sql_twice(k text) RETURNS text LANGUAGE sql
AS $$ SELECT concat_ws(' ', (idem_reserve(k)).status, (idem_reserve(k)).token > 0) $$;
CREATE FUNCTION pl_status(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	r := idem_reserve(k);
	RETURN r.status;
END $$;
CREATE FUNCTION pl_nested(k text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	outer_status text;
BEGIN
	outer_status := (idem_reserve(k)).status || ' ' || pl_status(k) || ' '
	|| pl_status(k || ' 2');
	RETURN outer_status;
END $$;
SELECT sql_status('f1'), sql_status('f1');
SELECT sql_twice('f2') FROM generate_series(1, 2);
SELECT pl_status('f3'), pl_status('f3') FROM generate_series(1, 2);
SELECT pl_nested('f4') FROM generate_series(1, 2);
SELECT (idem_reserve('f5')).status, pl_status('f5'),
	   (idem_reserve('f5')).token > 0 AS token;
SELECT (idem_reserve('f6')).status, pl_status('f7') AS other,
	   (idem_reserve('f6')).token > 0 AS token;

-- what fails in a statement is not remembered
SELECT outcome_of($$SELECT (idem_reserve('e1')).status || (1/0)::text$$);
SELECT (idem_reserve('e1')).status, (idem_reserve('e1')).token > 0 AS token;

TRUNCATE idempotency_keys;
DROP TABLE target;
DROP FUNCTION mistaken, sql_status, sql_twice, pl_status, pl_nested;
