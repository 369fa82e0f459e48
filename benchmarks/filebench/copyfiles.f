# SPDX-License-Identifier: Apache-2.0
# copyfiles: a tree of files is copied, file by file, until as many are there as it has.
# Made from personalities.toml by make.py; change it there.

set $dir=/tmp
set $nfiles=1000
set $nthreads=1
set $size_bigfileset=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)
set $size_destfiles=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)

set mode quit firstdone

define fileset name=bigfileset,path=$dir,size=$size_bigfileset,entries=$nfiles,dirwidth=20,prealloc=100
define fileset name=destfiles,path=$dir,size=$size_destfiles,entries=$nfiles,dirwidth=20

define process name=copyfiles,instances=1
{
  thread name=copyfilesthread,memsize=10m,instances=$nthreads
  {
    flowop openfile name=openfile1,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile2,fd=1,iosize=1048576
    flowop createfile name=createfile3,filesetname=destfiles,fd=2
    flowop writewholefile name=writewholefile4,srcfd=1,fd=2,iosize=1048576
    flowop closefile name=closefile5,fd=1
    flowop closefile name=closefile6,fd=2
  }
}

run 60
