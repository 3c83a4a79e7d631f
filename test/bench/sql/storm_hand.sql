-- SQL by hand: who has inserted the row need not look at it
\set fresh random(1, 100) <= :share
\if :fresh
\set k random(1, 9000000000000000)
INSERT INTO by_hand (key, status, expires_at) VALUES ('charge:' || :k, 'in_progress', now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING key;
UPDATE by_hand SET status = 'done', completed_at = now(), expires_at = now() + interval '1 day', result = '{"charge": "ch_123", "ok": true}' WHERE key = 'charge:' || :k AND status = 'in_progress';
\else
\set k random(1, :keys)
INSERT INTO by_hand (key, status, expires_at) VALUES ('settled:' || :k, 'in_progress', now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING key;
SELECT status, result, expires_at FROM by_hand WHERE key = 'settled:' || :k;
\endif
