# README.md's code for effects outside the database, as it stands, in a database
# that is installed as README.md does it: no invoice is charged twice, and none
# that was charged is recorded as failed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Blocks;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = '/usr/bin/python3';

plan skip_all => 'python3 has no psycopg or requests'
  if system("$python -c 'import psycopg, requests' 2>/dev/null") != 0;

my ($install) = grep { ($_->{group} // '') eq 'install' } blocks('README.md');
my ($code) = block_by('055_two_phases', 'README.md');
my $file = PostgreSQL::Test::Utils::tempdir() . '/readme.py';
my $node = PostgreSQL::Test::Cluster->new('two_phases');

append_to_file($file, $code);
$node->init;
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop', $install->{code});

my ($out, $err);
IPC::Run::run([ $python, '-B', "$FindBin::RealBin/two_phases.py", $file,
		$node->connstr('shop') . ' user=my_app', $node->connstr('shop') ],
	'>', \$out, '2>', \$err);
is($err, '', 'all callers end well');
foreach (split /\n/, $out)
{
	/^(ok|not ok) - (.*)/ ? ok($1 eq 'ok', $2) : note $_;
}
is($node->safe_psql('shop', q{SELECT status, count(*) FROM idem.idempotency_keys
		GROUP BY status ORDER BY status}), "done|10\nfailed|2", 'nothing is left open');
$node->stop('fast');

done_testing();
