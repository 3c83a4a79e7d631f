-- the floor: no conflict is expected, nothing is checked
\set k random(1, 9000000000000000)
BEGIN;
INSERT INTO by_hand (key, status, expires_at) VALUES ('charge:' || :k, 'in_progress', now() + interval '5 min');
INSERT INTO orders (key, amount) VALUES ('charge:' || :k, 42);
UPDATE by_hand SET status = 'done', completed_at = now(), expires_at = now() + interval '1 day', result = '{"charge": "ch_123", "ok": true}' WHERE key = 'charge:' || :k;
COMMIT;
