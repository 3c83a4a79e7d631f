-- SQL by hand in functions
\set k random(1, 9000000000000000)
BEGIN;
SELECT won, outcome FROM hand_reserve('charge:' || :k);
INSERT INTO orders (key, amount) VALUES ('charge:' || :k, 42);
SELECT hand_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}');
COMMIT;
