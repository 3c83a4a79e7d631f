-- The same by pgTAP: pg_prove -d shop_regression pgtap/shop.sql
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
SELECT plan(5);
SELECT clean();

SELECT results_eq($$SELECT status FROM place_order('order:1', 'tea', 1)$$,
	ARRAY['done'], 'an order is placed');
SELECT results_eq($$SELECT status FROM place_order('order:1', 'tea', 1)$$,
	ARRAY['done'], 'a retry hears of it');
SELECT is(count(*), 1::bigint, 'there is one order') FROM orders;
SELECT throws_ok($$SELECT place_order('order:1', 'tea', 2)$$, 'IK001',
	NULL, 'another order under its key is refused');

-- a test is one transaction, in which any call may settle: a token that the
-- application forgets is not missed here
SELECT idem_reserve('charge:1'), idem_abandon('charge:1');
SELECT results_eq($$SELECT status FROM idem_reserve('charge:1')$$,
	ARRAY['reserved'], 'an abandoned charge is taken over');

SELECT * FROM finish();
ROLLBACK;
