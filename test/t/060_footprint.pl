# What a call leaves behind does not grow unnoticed: WAL, buffers, transaction
# ids, dead tuples, and completions that touch the index.  These hardly vary,
# so the limits are a few percent above what they are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $rounds = 2000;
my $node = new_node('footprint', conf => <<'END');
full_page_writes = off
bgwriter_lru_maxpages = 0
shared_preload_libraries = 'idem_tool'
idem_tool.worker = off
END
my $caller = session($node);

$caller->query(<<'END');
PREPARE reserve(int) AS
	SELECT token FROM idem_reserve('charge:' || md5($1::text), '5 min');
PREPARE complete(int, jsonb, bigint) AS
	SELECT idem_complete('charge:' || md5($1::text), $2, $3);
PREPARE replay(int) AS
	SELECT status FROM idem_reserve('charge:' || md5($1::text), '5 min');
END

# Run a function in a session's transactions, $times times; what has come of
# it, for each time
sub cost
{
	my ($times, $work) = @_;
	my %before = counters();

	$work->($_) foreach 1 .. $times;
	my %after = counters();
	return map { $_ => ($after{$_} - $before{$_}) / $times } keys %after;
}

# A session of its own, for one that has looked at a table is counted there;
# the caller's figures are not complete before it says so
sub counters
{
	my $observer = session($node);
	my %counter;

	$caller->query('SELECT pg_stat_force_next_flush()');
	@counter{qw(wal xids buffers updates hot dead)} =
	  split(/\|/, $observer->query(<<'END'));
SELECT pg_current_wal_insert_lsn() - '0/0',
	pg_snapshot_xmax(pg_current_snapshot()),
	heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read
		+ toast_blks_hit + toast_blks_read + tidx_blks_hit + tidx_blks_read
		+ (SELECT blks_hit + blks_read FROM pg_statio_user_sequences
			WHERE relname = 'idempotency_keys_token_seq'),
	n_tup_upd, n_tup_hot_upd, n_dead_tup
FROM pg_statio_user_tables JOIN pg_stat_user_tables USING (relid)
WHERE relid = 'idempotency_keys'::regclass
END
	$observer->drop;
	return %counter;
}

# Reserve $rounds keys from $first on, then complete them with a result of
# $bytes that does not compress: whether that stays on the row's page shows
# when others have come in between
sub pairs
{
	my ($first, $bytes) = @_;
	my @token;
	my %reserve = cost(
		$rounds,
		sub {
			my $key = $first + $_[0];

			push @token, $caller->query("EXECUTE reserve($key)");
		});
	my %complete = cost(
		$rounds,
		sub {
			my $key = $first + $_[0];
			my $result = join('', map { chr(97 + rand 26) } 1 .. $bytes);
			my $token = shift @token;

			$caller->query(qq{EXECUTE complete($key, '"$result"', $token)});
		});
	return (completion => $complete{wal},
		map { $_ => $reserve{$_} + $complete{$_} } keys %reserve);
}

sub at_most
{
	my ($value, $limit, $what) = @_;

	return cmp_ok($value, '<=', $limit, sprintf('%s: %.2f', $what, $value));
}

sub heap_only
{
	my ($what, %cost) = @_;
	my $share = $cost{hot} / $cost{updates};

	return cmp_ok($share, '>=', 0.95,
		sprintf('heap-only completions %s: %.3f', $what, $share));
}

# the plans, and a table with some keys
pairs(0, 30);

my %pair = pairs($rounds, 30);
at_most($pair{wal}, 608, 'bytes of WAL for reserve + complete');
at_most($pair{completion}, 185, "bytes of WAL for a completion where $rounds are open");
at_most($pair{buffers}, 9.4, 'buffers for reserve + complete');
is($pair{xids}, 2, 'transaction ids for reserve + complete');
heap_only('with a result of 30 bytes', %pair);

my %large = pairs(2 * $rounds, 100);
at_most($large{wal}, 691, 'bytes of WAL with a result of 100 bytes');
heap_only('with a result of 100 bytes', %large);

# Hint bits and pruning, as any SELECT does: once
my $replay = sub { $caller->query("EXECUTE replay($_[0])") };
cost(3 * $rounds, $replay);
$caller->query('VACUUM idempotency_keys');

my %replay = cost($rounds, $replay);
is($replay{wal}, 0, 'no WAL for a replay');
is($replay{xids}, 0, 'no transaction id');
is($replay{dead}, 0, 'no dead tuple');
is($replay{updates}, 0, 'no update');
at_most($replay{buffers}, 1.06, 'buffers for a replay of any key');

my $again = sub { $caller->query('EXECUTE replay(' . $_[0] % 10 . ')') };
my %burst = cost($rounds, $again);
at_most($burst{buffers}, 1.06, 'buffers for a replay of a key that is known');

# The sweep, whose session is not ours: keys that are past their memory
sub swept
{
	my $observer = session($node);
	my ($before, $deleted, $after);

	$observer->query(<<'END');
TRUNCATE idempotency_keys;
SELECT count(idem_reserve('swept' || i)) FROM generate_series(1, 5000) AS i;
UPDATE idempotency_keys SET status = 'released', expires_at = created_at;
END
	$observer->query('VACUUM idempotency_keys');
	$before = $observer->query('SELECT pg_current_wal_insert_lsn()');
	$deleted = $observer->query('SELECT deleted FROM idem_sweep()');
	$after = $observer->query("SELECT pg_current_wal_insert_lsn() - '$before'");
	is($deleted, 5000, 'swept');
	$observer->drop;
	return $after / 5000;
}

at_most(swept(), 62, 'bytes of WAL for a key that is swept');

# A trigger is still fired, for which the sweep needs a statement
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION ignore() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
CREATE TRIGGER ignored BEFORE DELETE ON idempotency_keys
FOR EACH ROW EXECUTE FUNCTION ignore();
END
cmp_ok(swept(), '>', 100, 'more where there is a trigger');

$node->stop;
done_testing();
