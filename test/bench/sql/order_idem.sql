-- idem_tool
\set k random(1, 9000000000000000)
BEGIN;
SELECT status FROM idem_reserve('charge:' || :k, '5 min');
INSERT INTO orders (key, amount) VALUES ('charge:' || :k, 42);
SELECT idem_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}');
COMMIT;
