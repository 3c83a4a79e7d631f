-- idem_tool
\set fresh random(1, 100) <= :share
\if :fresh
\set k random(1, 9000000000000000)
SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
SELECT idem_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}', :token);
\else
\set k random(1, :keys)
SELECT status, result FROM idem_reserve('settled:' || :k, '5 min');
\endif
