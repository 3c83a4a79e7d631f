-- idem_tool, with a result of some size
\set k random(1, 9000000000000000)
SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
SELECT idem_complete('charge:' || :k, to_jsonb(repeat('x', :bytes)), :token);
