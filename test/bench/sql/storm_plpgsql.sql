-- SQL by hand in functions
\set fresh random(1, 100) <= :share
\if :fresh
\set k random(1, 9000000000000000)
SELECT won, outcome FROM hand_reserve('charge:' || :k);
SELECT hand_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}');
\else
\set k random(1, :keys)
SELECT won, outcome FROM hand_reserve('settled:' || :k);
\endif
