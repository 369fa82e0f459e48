# SPDX-License-Identifier: Apache-2.0
# mongo: posts are appended to and read, others are deleted until none is left.
# Made from personalities.toml by make.py; change it there.

set $dir=/tmp
set $nfiles=1000
set $nthreads=1
set $size_postset=16384
set $size_postsetdel=16384

set mode quit firstdone

define fileset name=postset,path=$dir,size=$size_postset,entries=$nfiles,dirwidth=20,prealloc=100
define fileset name=postsetdel,path=$dir,size=$size_postsetdel,entries=$nfiles,dirwidth=20,prealloc=100

define process name=mongo,instances=1
{
  thread name=mongothread,memsize=10m,instances=$nthreads
  {
    flowop openfile name=openfile1,filesetname=postset,fd=1
    flowop appendfilerand name=appendfilerand2,fd=1,iosize=16384
    flowop closefile name=closefile3,fd=1
    flowop openfile name=openfile4,filesetname=postset,fd=1
    flowop readwholefile name=readwholefile5,fd=1,iosize=1048576
    flowop closefile name=closefile6,fd=1
    flowop deletefile name=deletefile7,filesetname=postsetdel
  }
}

run 60
