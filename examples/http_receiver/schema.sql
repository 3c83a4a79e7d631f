-- What the receiver needs; may be run again.

CREATE EXTENSION IF NOT EXISTS idem_tool;

-- Who may call, and the scope of his keys: two clients never meet in one.
CREATE TABLE IF NOT EXISTS clients (
	name text PRIMARY KEY CHECK (name ~ '^[a-z0-9_-]{1,64}$'),
	token_sha256 bytea NOT NULL UNIQUE
);

-- Answers are kept for a day.  The provider keeps a key for 24 hours, so
-- nobody tries an unknown outcome again after 20.
SELECT idem_register('charge', effect => 'write',
	reservation_ttl => '30 seconds', takeover => '20 hours',
	result_ttl => '24 hours', description => 'Charge a customer''s card');
SELECT idem_register('quote', effect => 'read',
	description => 'The fee for charging an amount');
