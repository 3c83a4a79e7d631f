-- SQL by hand in functions
\set k random(1, 9000000000000000)
SELECT won, outcome FROM hand_reserve('charge:' || :k);
SELECT hand_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}');
