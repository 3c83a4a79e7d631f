-- The application's schema: orders that are placed once, charges that are made
-- once.  Whoever calls may be a retry.

CREATE TABLE stock (
	item text PRIMARY KEY,
	amount integer NOT NULL CHECK (amount >= 0)
);

CREATE TABLE orders (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	item text NOT NULL REFERENCES stock,
	amount integer NOT NULL
);

CREATE TABLE receipts (
	invoice text PRIMARY KEY,
	receipt jsonb NOT NULL
);

-- Same transaction: the order and its key commit or vanish together.  An order
-- that cannot be filled is refused for good; the block with the exception takes
-- back what it has written so far, but not the reservation.
CREATE FUNCTION place_order(key text, item text, amount integer,
							wait interval DEFAULT '0',
							OUT status text, OUT result jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	answer idem_answer;
BEGIN
	answer := idem_reserve(key, wait => wait, request =>
		jsonb_build_object('item', item, 'amount', amount));
	status := answer.status;
	result := answer.result;
	IF status <> 'reserved' THEN
		RETURN;
	END IF;

	BEGIN
		INSERT INTO orders (item, amount) VALUES (item, amount)
		RETURNING jsonb_build_object('order', id) INTO result;
		UPDATE stock AS s SET amount = s.amount - place_order.amount
		WHERE s.item = place_order.item;
		status := 'done';
		PERFORM idem_complete(key, result);
	EXCEPTION WHEN check_violation THEN
		status := 'failed';
		result := '{"refused": "out of stock"}';
		PERFORM idem_fail(key, result);
	END;
END $$;

-- Two phases: begin_charge, which commits; the provider charges; end_charge
-- with the token that begin_charge has returned.
CREATE FUNCTION begin_charge(invoice text, amount integer,
							 machine text DEFAULT NULL)
RETURNS idem_answer
LANGUAGE sql AS $$
	SELECT * FROM idem_reserve('charge:' || invoice, '2 min', holder => machine,
		request => jsonb_build_object('invoice', invoice, 'amount', amount))
$$;

CREATE FUNCTION end_charge(invoice text, token bigint, receipt jsonb)
RETURNS boolean
LANGUAGE sql AS $$
	INSERT INTO receipts VALUES (invoice, receipt) ON CONFLICT DO NOTHING;
	SELECT idem_complete('charge:' || invoice, receipt, token)
$$;
