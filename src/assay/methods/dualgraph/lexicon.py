"""English word lists of the rules: what carries no meaning, denies, points back, asks, or relates."""

from __future__ import annotations

# Words that carry no meaning of their own.
_STOP_WORDS_TEXT = """
a about above after again against all also although am among an and another any are aren as at be
because been before being below between both but by came can come could couldn did didn do does doesn
doing don done down during e each either else etc ever every few for from further g get gets got had
hadn has hasn have haven having he hence her here hers herself him himself his how however i if in
instead into is isn it its itself just like ll made make makes many may me might mine more most much
must mustn my myself near need of off often on once one only onto or other others our ours ourselves out
over own per please quite rather re really same say see seem seems shall she should shouldn since so
some such than that the their theirs them themselves then there thereby therefore these they this those
though through thus to too toward towards under until up upon us use used uses using ve very via was
wasn we well were weren what whatever when where whereas whether which while who whoever whom whose why
will with within would wouldn yet you your yours yourself
"""
STOP_WORDS = frozenset(_STOP_WORDS_TEXT.split())

# Words that deny; "t" is what is left of "don't" where the apostrophe is a blank.
_NEGATIONS_TEXT = """
no not never none nor cannot without neither nobody nothing nowhere hardly t
"""
NEGATIONS = frozenset(_NEGATIONS_TEXT.split())

# What ends with a dot and ends no sentence.
_ABBREVIATIONS_TEXT = """
e.g i.e etc vs cf fig figs eq eqs sec dr mr mrs ms prof st no nos vol pp al approx inc ltd jr sr ca dept
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())

# Opening words that mean something named before.
_POINTING_TEXT = """
it its this that these those they their he she such both here there
"""
POINTING = frozenset(_POINTING_TEXT.split())

# Words of questions that name no subject.
_ASKING_TEXT = """
compare comparison describe description discuss explain explanation overview summarise summarize give
list tell difference differences different role roles relation relations relationship relationships
affect affects effect effects impact work works working interact interacts interaction way ways main
important best good influence influences happen happens depend depends report write analysis analyse
analyze research know together jointly relate relates related differ differs alone better well
everything something anything involve involves
"""
ASKING = frozenset(_ASKING_TEXT.split())

# Verbs that state a relation between two things in expository text.
_VERBS_TEXT = """
accept access achieve acquire act add adopt affect aim allow announce append apply appoint arise assign
attach attack base become begin belong bind block break bring build buy call capture carry cause change
check choose cite claim combine compare compile compete compute configure connect consist consume
contain control convert cooperate copy create cut declare decrease define deliver depend derive describe
design detect determine develop differ disable discover drive emit employ enable encode end enforce
ensure enter establish evaluate evolve exclude execute expand expect explain export expose express
extend fail feed fetch fill find fix follow force form found fund generate give govern grow guide handle
help hold host identify ignore implement imply import improve include increase indicate influence inform
inherit inhibit initialise initialize inspire install interact introduce invent invoke involve issue
join keep know launch lead learn let limit link list load locate look lower maintain manage manufacture
map mark match measure mention merge modify monitor move name need negotiate obtain offer open operate
order override own parse pass perform permit point populate precede prefer prevent print process produce
propose protect prove provide publish pull push query raise reach read receive recognise recognize
recommend record reduce refer reference reflect register reject relate release rely remain remove render
replace report represent request require reset resolve respect restrict return reuse run satisfy save
scan search select send separate serve set share show sign signal sit skip solve specify spread start
state stimulate stop store suggest supersede supply support suppress take target teach test throw track
train transfer transform translate treat trigger turn update use validate verify visit wait warn work
wrap write is are was were be been has have had does
"""
VERBS = frozenset(_VERBS_TEXT.split())

# Small words inside names.
_LINKS_TEXT = """
of for and the de van von la le du der
"""
LINKS = frozenset(_LINKS_TEXT.split())

# Words that documentation writes in capitals for values and warnings: no names.
_VALUES_TEXT = """
true false on off yes no null none nil ok required optional note warning todo fixme important caution
deprecated
"""
VALUES = frozenset(_VALUES_TEXT.split())

# Numbers that texts spell out, from 0.
_NUMBER_WORDS_TEXT = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty
"""
NUMBER_WORDS = {word: str(value) for value, word in enumerate(_NUMBER_WORDS_TEXT.split())}
