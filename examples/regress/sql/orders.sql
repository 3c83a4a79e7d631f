--
-- An order is placed once for its key.  Same transaction.
--

-- errors by their SQLSTATE: the DETAIL has a point in time
\set VERBOSITY sqlstate
SELECT clean();

-- the first call and its retry get the same
SELECT * FROM place_order('order:1', 'tea', 2);
SELECT * FROM place_order('order:1', 'tea', 2);
SELECT * FROM orders;

-- another request under the key
SELECT * FROM place_order('order:1', 'tea', 3);

-- what is rolled back has not been, and its number is not given out again
BEGIN;
SELECT * FROM place_order('order:2', 'tea', 2);
ROLLBACK;
SELECT status FROM idem_lookup('order:2');
SELECT status FROM place_order('order:2', 'tea', 2);

-- a refusal is for good, also when there is salt again; nothing was written
SELECT * FROM place_order('order:3', 'salt', 2);
UPDATE stock SET amount = 20 WHERE item = 'salt';
SELECT * FROM place_order('order:3', 'salt', 2);
SELECT count(*) FROM orders WHERE item = 'salt';

-- how long it is remembered: compare with clock_timestamp(), for now() is when
-- the transaction began, and never print a time
SELECT key, status, completed_at <= clock_timestamp() AS completed,
	expires_at - completed_at AS memory
FROM idem_lookup('order:1');

-- past it, the key is new
SELECT let_pass('order:1');
SELECT count(*) FROM idem_lookup('order:1');
SELECT status FROM place_order('order:1', 'tea', 1);
SELECT item, sum(amount) FROM orders GROUP BY item;
