# The hash of a key, as it shows in pg_locks: the published one, and another in
# each cluster, so that nobody can make a key that is in the way of another's.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

# --- the function, against its authors' vectors: for inputs of 0 to 15 bytes
# (the last of these is the paper's), and of 63

my @published = qw(
  310e0edd47db6f72 fd67dc93c539f874 5a4fa9d909806c0d 2d7efbd796666785
  b7877127e09427cf 8da699cd64557618 cee3fe586e46c9cb 37d1018bf50002ab
  6224939a79f5f593 b0e4a90bdf82009e f3b9dd94c5bb5d7a a7ad6b22462fb3f4
  fbe50e86bc8f1e75 903d84c02756ea14 eef27a8e90ca23f7 e545be4961ca29a1);
my $program = PostgreSQL::Test::Utils::tempdir() . '/vectors';

system_or_bail('cc', '-Isrc', '-o', $program, 'test/siphash/vectors.c',
	'src/keys/siphash.c');
my @printed = split(/\n/, `$program`);
is(scalar(@printed), 64, 'hashed');
is_deeply([ @printed[ 0 .. 15 ] ], \@published, 'as published');
is($printed[63], '724506eb4c328a95', '... for the longest as well');

# --- in a server: the lock on a key that is being inserted, as a trigger that
# fires meanwhile sees it

sub locks
{
	my ($name) = @_;
	my $node = new_node($name);
	my $session = session($node);

	$session->query(<<'END');
CREATE TABLE seen (key text, hash bigint);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO seen
	SELECT NEW.scope || '/' || NEW.key, classid::bigint << 32 | objid::bigint
	FROM pg_locks
	WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 73;
	RETURN NEW;
END $$;
CREATE TRIGGER see BEFORE INSERT ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION see();
SELECT FROM idem_reserve('key');
SELECT FROM idem_reserve('ey', scope => 'k');
SELECT FROM idem_reserve('y', scope => 'ke');
END
	my $seen = $session->query(
		"SELECT string_agg(key || ' ' || hash, ', ' ORDER BY key) FROM seen");
	my $known = $session->query(
		"SELECT count(*) FROM seen WHERE hash = hashtextextended('key', hashtextextended('', 0))"
	);
	is($known, 0, "$name: not what anybody can compute");
	$node->stop;
	return map { split(/ /, $_) } split(/, /, $seen);
}

my %one = locks('one');
my %another = locks('another');
is_deeply([ sort keys %one ], [ '/key', 'k/ey', 'ke/y' ],
	'the locks are seen');
my %distinct = map { $_ => 1 } values %one, values %another;
is(scalar(keys %distinct), 6,
	'scope and key are told apart, and each cluster has hashes of its own');

done_testing();
