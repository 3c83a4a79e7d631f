-- What the service needs; may be run again.

CREATE EXTENSION IF NOT EXISTS idem_tool;

CREATE TABLE IF NOT EXISTS invoices (
	-- no colon, so that charge:<id>:2 is no other invoice's first charge
	id text PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9_-]{1,64}$'),
	amount_cents integer NOT NULL CHECK (amount_cents > 0),
	currency text NOT NULL DEFAULT 'EUR' CHECK (currency ~ '^[A-Z]{3}$'),
	-- how often somebody has decided that this invoice be charged
	decision integer NOT NULL DEFAULT 1 CHECK (decision > 0)
);

-- The provider keeps a key for 24 hours, so nobody tries again after 20.
SELECT idem_register('charge', effect => 'write',
	reservation_ttl => '30 seconds', takeover => '20 hours',
	description => 'Charge an invoice to the card on file');

-- Outcomes are kept for ever: an invoice is never charged twice.  A service
-- with a role of its own would rather have
--     ALTER ROLE charge_service SET idem_tool.result_ttl = -1;
DO $$
BEGIN
	EXECUTE format('ALTER DATABASE %I SET idem_tool.result_ttl = -1',
		current_database());
END
$$;
