# What logical decoding tells of a reservation that plain SQL forestalled:
# nothing.  A subscriber has the rival's row, and would take it away again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $node = new_node('decoding', conf => 'wal_level = logical');
my $caller = session($node);
my $rival = session($node);

# holds up the caller's insertions between his look and his row
$rival->query(<<'END');
CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(7);
	RETURN NEW;
END $$;
CREATE TRIGGER at_gate BEFORE INSERT ON idempotency_keys FOR EACH ROW
	WHEN (NEW.token <> 70) EXECUTE FUNCTION at_gate();
END
$rival->query(<<'END');
SELECT pg_create_logical_replication_slot('slot', 'test_decoding')
END
$rival->query('SELECT pg_advisory_lock(7)');

$caller->send("SELECT status, attempt FROM idem_reserve('k')");
ok(eventually($rival, <<'END'), 'a caller is at the gate');
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
	AND objid = 7 AND NOT granted)
END
$rival->query(<<'END');
INSERT INTO idempotency_keys (key, status, attempt, maybe_ran, token, owner,
	created_at, reserved_at, expires_at)
VALUES ('k', 'done', 7, false, 70, current_user, now(), now(), 'infinity')
END
$rival->query('SELECT pg_advisory_unlock(7)');
is(join(' ', @{ $caller->answer->{rows}[0] }), 'done 7',
	'the key was forestalled');

is($rival->query(<<'END'), 'INSERT', 'subscribers hear of one row');
SELECT string_agg(substring(data, 'idempotency_keys: (\w+)'), ' ')
FROM pg_logical_slot_get_changes('slot', NULL, NULL)
WHERE data LIKE 'table public.idempotency_keys:%'
END

$node->stop;
done_testing();
