-- a key that is in progress, by hand
INSERT INTO by_hand (key, status, expires_at) VALUES ('hot', 'in_progress', now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING key;
SELECT status, result, expires_at FROM by_hand WHERE key = 'hot';
