# The instructions of a call, against SQL by hand, do not grow unnoticed.
# Counted by callgrind, which repeats within a percent.

use strict;
use warnings FATAL => 'all';

use FindBin;
use Test::More;

# The peers' own instructions differ from version to version
my $version = `pg_config --version`;
plan skip_all => "the limits are for PostgreSQL 15"
  if $version !~ /^PostgreSQL 15\./;
plan skip_all => 'valgrind is not installed'
  if system('valgrind --version >/dev/null 2>&1');

# Enough to know all keys of a burst before counting begins
local @ENV{qw(SHORT LONG)} = (300, 600);
my %ratio;
foreach my $measure (qw(whole everything))
{
	my @lines = `bash '$FindBin::RealBin/../bench/instructions.sh' $measure`;

	is($?, 0, "counted: $measure");
	note(@lines);
	foreach (@lines)
	{
		$ratio{"$measure, $1: $3"} = $2
		  if /^(.+?)  +\d+ instructions, +(\S+) x (.*) \(/;
	}
}

sub at_most
{
	my ($limit, $what) = @_;
	my $value = $ratio{$what} // 'inf';

	return cmp_ok($value, '<=', $limit, "$what: $value");
}

# what they are, and two percent
at_most(0.646, 'whole, replay: primary-key SELECT');
at_most(0.266, 'whole, replay: INSERT, SELECT by hand');
at_most(0.985, 'whole, replay, any key: primary-key SELECT');
at_most(0.955, 'whole, reserve + complete: bare INSERT + UPDATE');
at_most(0.735, 'whole, reserve + complete: INSERT, UPDATE by hand');
at_most(0.737, 'everything, replay: primary-key SELECT');
at_most(0.975, 'everything, replay, any key: primary-key SELECT');
at_most(1.205, 'everything, replay, not prepared: primary-key SELECT');
at_most(0.825, 'everything, reserve + complete: INSERT, UPDATE by hand');

done_testing();
