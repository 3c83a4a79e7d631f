--
-- Many keys in one transaction, savepoints, and calls from everywhere.
--
\pset format unaligned
\pset null '(null)'

--
-- 100 000 reservations in one transaction
--
CREATE FUNCTION locks_held() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()
		   AND locktype <> 'virtualxid'
$$;
CREATE FUNCTION memory_used() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts
$$;
-- with all caches filled
SELECT memory_used() > 0 AS memory, locks_held() > 0 AS locks;
BEGIN;
SELECT status FROM idem_reserve('bulk 0');
SELECT locks_held() AS locks, memory_used() AS memory \gset
SELECT count(*) FILTER (WHERE status = 'reserved'),
	   max(CASE i WHEN 100000 THEN memory_used() END)
	   - max(CASE i WHEN 1000 THEN memory_used() END) < 100000 AS flat
FROM generate_series(1, 100000) AS i, idem_reserve('bulk ' || i);
SELECT locks_held() - :locks AS more_locks,
	   memory_used() - :memory < 100000 AS flat;
-- one transaction id: no subtransaction has written anything
SELECT count(DISTINCT xmin::text),
	   min(xmin::text) = pg_current_xact_id()::xid::text AS ours
FROM idempotency_keys;
SELECT count(*), count(DISTINCT token) AS tokens FROM idempotency_keys;
-- and settling them, which by our own keys needs no token
SELECT count(*) FROM generate_series(1, 20000) AS i
WHERE idem_complete('bulk ' || i, '1');
SELECT locks_held() - :locks AS more_locks;
SELECT count(*) FROM generate_series(20001, 20100) AS i
WHERE idem_release('bulk ' || i);
SELECT count(DISTINCT xmin::text) FROM idempotency_keys;
COMMIT;
SELECT status, count(*) FROM idempotency_keys GROUP BY status ORDER BY status;
SELECT status, count(*)
FROM generate_series(1, 21000) AS i, idem_reserve('bulk ' || i)
GROUP BY status ORDER BY status;
TRUNCATE idempotency_keys;
-- in a target list
BEGIN;
SELECT count(*) FILTER (WHERE status = 'reserved'),
	   max(CASE i WHEN 10000 THEN memory_used() END)
	   - max(CASE i WHEN 1000 THEN memory_used() END) < 100000 AS flat
FROM (SELECT i, (idem_reserve('list ' || i)).status
	  FROM generate_series(1, 10000) AS i OFFSET 0) AS r;
ROLLBACK;
-- replays, and waits that come to nothing
SELECT make_state('done', 'done') IS NOT NULL AS made;
SELECT make_state('busy', 'in_progress') IS NOT NULL AS made;
BEGIN;
SELECT count(*) FILTER (WHERE status = 'done'),
	   max(CASE i WHEN 20000 THEN memory_used() END)
	   - max(CASE i WHEN 1000 THEN memory_used() END) < 100000 AS flat
FROM generate_series(1, 20000) AS i,
	 idem_reserve('done', i * interval '1 second');
SELECT count(*) FILTER (WHERE status = 'in_progress'),
	   max(CASE i WHEN 100 THEN memory_used() END)
	   - max(CASE i WHEN 10 THEN memory_used() END) < 100000 AS flat
FROM generate_series(1, 100) AS i,
	 idem_reserve('busy', i * interval '1 second', wait => '3 milliseconds');
-- many looks of one wait
SELECT memory_used() AS memory \gset
SELECT status FROM idem_reserve('busy', wait => '500 milliseconds');
SELECT memory_used() - :memory < 100000 AS flat;
COMMIT;
TRUNCATE idempotency_keys;
DROP FUNCTION locks_held, memory_used;

--
-- Savepoints
--
BEGIN;
SELECT status FROM idem_reserve('before');
SAVEPOINT a;
SELECT status FROM idem_reserve('in a');
SELECT idem_complete('before', '1');
SAVEPOINT b;
SELECT status FROM idem_reserve('in b');
SELECT idem_complete('in a', '1');
ROLLBACK TO b;
SELECT status FROM idem_reserve('in a');
SELECT status, attempt FROM idem_reserve('in b');
ROLLBACK TO a;
SELECT status FROM idem_reserve('before');
SELECT status, attempt FROM idem_reserve('in a');
RELEASE a;
SELECT idem_complete('before', '2'), idem_complete('in a', '2');
COMMIT;
SELECT key, status, result FROM idempotency_keys ORDER BY key;
-- an error in the work gives the key back
DO $$
BEGIN
	PERFORM idem_reserve('work');
	PERFORM 1 / 0;
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;
SELECT count(*) FROM idem_lookup('work');
BEGIN;
SELECT status FROM idem_reserve('work');
SELECT 1 / 0;
COMMIT;
SELECT status, attempt FROM idem_reserve('work');
-- many of them
BEGIN;
DO $$
BEGIN
	FOR i IN 1..200 LOOP
		BEGIN
			PERFORM idem_reserve('savepoint ' || i);
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'undo';
			END IF;
			PERFORM idem_complete('savepoint ' || i, to_jsonb(i));
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END $$;
COMMIT;
SELECT status, count(*), sum(result::int) FROM idempotency_keys
WHERE key LIKE 'savepoint%' GROUP BY status;
TRUNCATE idempotency_keys;

--
-- Cursors reserve as they go
--
BEGIN;
DECLARE c CURSOR FOR SELECT key, status
FROM unnest(ARRAY['c1', 'c2', 'c1', 'c3']) AS key, idem_reserve(key);
FETCH c;
SELECT count(*) FROM idempotency_keys;
FETCH c;
FETCH c;
SELECT count(*) FROM idempotency_keys;
CLOSE c;
DECLARE t CURSOR FOR SELECT key, (idem_reserve(key)).status,
	(idem_reserve(key)).token > 0 AS token
	FROM unnest(ARRAY['t1', 't2', 't1', 't3']) AS key;
FETCH t;
SELECT status FROM idem_reserve('t1');
FETCH t;
FETCH ALL t;
COMMIT;
-- held: all at the commit
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT key, status
FROM unnest(ARRAY['h1', 'h2']) AS key, idem_reserve(key);
FETCH h;
COMMIT;
SELECT key, status FROM idempotency_keys WHERE key LIKE 'h%' ORDER BY key;
FETCH h;
CLOSE h;
-- a loop that commits in between
DO $$
DECLARE
	r record;
	k text;
BEGIN
	FOR k IN SELECT 'loop ' || i FROM generate_series(1, 3) AS i LOOP
		SELECT * INTO r FROM idem_reserve(k);
		COMMIT;
		PERFORM idem_complete(k, '1', r.token);
		COMMIT;
	END LOOP;
END $$;
SELECT key, status FROM idempotency_keys WHERE key LIKE 'loop%' ORDER BY key;
TRUNCATE idempotency_keys;

--
-- From a trigger: an order number is charged once
--
CREATE TABLE orders (id int PRIMARY KEY, amount int);
CREATE TABLE charges (order_id int, amount int);
CREATE FUNCTION charge_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	SELECT * INTO r
	FROM idem_reserve('order ' || NEW.id,
					  request => jsonb_build_object('amount', NEW.amount));
	IF r.status = 'reserved' THEN
		INSERT INTO charges VALUES (NEW.id, NEW.amount);
		PERFORM idem_complete('order ' || NEW.id, to_jsonb(NEW.amount));
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER charge BEFORE INSERT OR UPDATE ON orders FOR EACH ROW
	EXECUTE FUNCTION charge_order();
INSERT INTO orders SELECT i, i * 10 FROM generate_series(1, 3) AS i;
UPDATE orders SET amount = amount;
DELETE FROM orders WHERE id = 1;
INSERT INTO orders VALUES (1, 10);
SELECT outcome_of('UPDATE orders SET amount = 11 WHERE id = 1');
SELECT * FROM charges ORDER BY order_id;
SELECT key, status, result FROM idempotency_keys ORDER BY key;
INSERT INTO orders VALUES (4, 40), (4, 40);
SELECT count(*) FROM idem_lookup('order 4');
-- deferred until the commit
CREATE CONSTRAINT TRIGGER charge_later AFTER INSERT ON orders
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION charge_order();
DROP TRIGGER charge ON orders;
BEGIN;
INSERT INTO orders VALUES (5, 50);
SELECT count(*) FROM idem_lookup('order 5');
COMMIT;
SELECT status, result FROM idem_lookup('order 5');
DROP TABLE orders, charges;
DROP FUNCTION charge_order;

-- in procedures, prepared statements, SECURITY DEFINER and SQL functions
CREATE FUNCTION at_once(k text) RETURNS boolean LANGUAGE sql SECURITY DEFINER
AS $$ SELECT idem_reserve(k); SELECT idem_complete(k, '1'); $$;
SELECT at_once('k');
SELECT outcome_of($$SELECT at_once('k')$$);
SELECT status FROM idem_reserve('k');
DROP FUNCTION at_once;
CREATE PROCEDURE two_phases(k text) LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	r := idem_reserve(k);
	COMMIT;
	PERFORM idem_complete(k, '1', r.token);
END $$;
CALL two_phases('p');
SELECT status, result FROM idem_reserve('p');
DROP PROCEDURE two_phases;
PREPARE reserve (text, jsonb) AS SELECT status, attempt
FROM idem_reserve($1, request => $2);
EXECUTE reserve ('prep', '1');
EXECUTE reserve ('prep', '1');
EXECUTE reserve ('prep', NULL);
EXECUTE reserve ('prep 2', NULL);
\set VERBOSITY sqlstate
EXECUTE reserve ('prep', '2');
\set VERBOSITY default
DEALLOCATE reserve;

TRUNCATE idempotency_keys;
