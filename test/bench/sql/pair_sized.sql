-- idem_tool, with a result of some size that does not compress
\set k random(1, 9000000000000000)
SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
SELECT idem_complete('charge:' || :k, to_jsonb(left(string_agg(md5(i::text || :k), ''), :bytes)), :token) FROM generate_series(1, :bytes / 32 + 1) i;
