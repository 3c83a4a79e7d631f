# docs/testing.md quotes examples/regress, which has its tests elsewhere: each
# block stands in one of the example's files, as it is.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Blocks;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $example = "$root/examples/regress";
my @files = map { slurp_file($_) } map { glob("$example/$_") }
  qw(Makefile shop.sql test_shop.py sql/*.sql specs/*.spec pgtap/*.sql);
my @blocks = block_by('056_testing', 'docs/testing.md');

cmp_ok(scalar(@blocks), '>', 5, 'there are blocks');
foreach my $block (@blocks)
{
	my ($first) = $block =~ /^ *(.*)$/m;

	ok((grep { index($_, $block) >= 0 } @files), "in the example: $first");
}

# What is listed runs
my ($makefile) = $files[0];
foreach my $kind ([ 'REGRESS', 'sql', 'sql' ], [ 'ISOLATION', 'specs', 'spec' ])
{
	my ($variable, $directory, $suffix) = @$kind;
	my ($listed) = $makefile =~ /^$variable +=(.*)$/m;
	my @there = map { m{([^/]+)\.$suffix$} } glob("$example/$directory/*.$suffix");

	is(join(' ', sort split(' ', $listed)), join(' ', sort @there),
		"all of $directory is in the Makefile");
}

done_testing();
