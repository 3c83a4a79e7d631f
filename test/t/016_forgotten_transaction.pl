# One statement forgot the transaction: idem_reserve runs in it, idem_complete
# on another connection of the application's pool.  That must not hang until the
# transaction ends, for the transaction waits for it: the application would
# stand still for good, and no deadlock is seen.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $python = $ENV{PYTHON} // '/usr/bin/python3';
plan skip_all => 'python3 has no psycopg'
  if system("$python -c 'import psycopg' 2>/dev/null") != 0;

my $node = new_node('forgotten_transaction');
my ($out, $err);
my $ended = eval {
	IPC::Run::run(
		[
			$python, '-B', "$FindBin::RealBin/forgotten_transaction.py",
			$node->connstr('postgres')
		],
		'>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
};

# it ends by itself: each call was answered while the transaction was open
ok($ended, 'the application goes on') or diag($@, $err);

my $open = 'IK003: The reservation may not be committed yet: commit it first, '
  . 'or call in the transaction that made it.';
foreach my $key ('reserved', 'completed')
{
	my @expected;

	foreach my $function ('complete', 'fail', 'release', 'abandon', 'extend')
	{
		my $answer = $function =~ /release|abandon/ ? 'False' : $open;

		push @expected, map { "$key|$function|$_|$answer" }
		  ('token', 'none', 'invented');
	}
	is_deeply([ grep { /^$key\|.*\|/ && !/INTRANS/ } split(/\n/, $out) ],
		\@expected, "$key: every call is told at once");
	like($out, qr/^$key\|INTRANS$/m, '... in the middle of the transaction');
	is(heard(session($node), $key),
		'done 1 f 1', '... which then has its way');
}

$node->stop;
done_testing();
