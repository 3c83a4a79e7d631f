-- idem_tool
\set k random(1, 9000000000000000)
SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
SELECT idem_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}', :token);
